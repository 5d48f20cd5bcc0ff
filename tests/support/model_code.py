"""A model that runs its own code: a class of the library under another name, in two files of the folder."""

import json
from pathlib import Path
from typing import Any, Final

CODE: Final = {
    "configuration_harbour.py": "from transformers import LlamaConfig\n\n\nclass HarbourConfig(LlamaConfig):\n"
    "    model_type = 'harbour'\n",
    "modeling_harbour.py": "from transformers import LlamaForCausalLM\n\nfrom .configuration_harbour import HarbourConfig\n\n\n"
    "class HarbourForCausalLM(LlamaForCausalLM):\n    config_class = HarbourConfig\n",
}


def add_code(model: Path) -> None:
    """Make the (llama) model in this folder one that needs its code."""
    for name, content in CODE.items():
        (model / name).write_text(content)
    edit_config(
        model,
        model_type="harbour",
        architectures=["HarbourForCausalLM"],
        auto_map={
            "AutoConfig": "configuration_harbour.HarbourConfig",
            "AutoModelForCausalLM": "modeling_harbour.HarbourForCausalLM",
        },
    )


def edit_config(model: Path, **fields: Any) -> None:
    path = model / "config.json"
    value = json.loads(path.read_text()) | fields
    path.unlink()  # a hard link into the original
    path.write_text(json.dumps(value))
