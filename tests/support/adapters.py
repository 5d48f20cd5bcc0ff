"""LoRA adapters for tests, in PEFT's layout: random matrices that change what the model answers, the same bytes for the same seed."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Matrices = dict[str, "torch.Tensor"]


def make_adapter(
    folder: Path,
    model: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    alpha: float = 8,
    targets: Sequence[str] = ("q_proj", "v_proj"),
    edit: Callable[[Matrices], Any] | None = None,
    **config: Any,
) -> Path:
    """Write an adapter for every layer of ``model`` (one safetensors file) that ``targets`` names. ``edit`` changes the matrices,
    ``config`` fields of adapter_config.json (None removes one)."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    matrices: Matrices = {}
    with safe_open(model / "model.safetensors", framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
    for name, shape in shapes.items():
        module = name.removesuffix(".weight")
        if not name.endswith(".weight") or not any(module.endswith(f".{target}") for target in targets):
            continue
        outputs, inputs = shape
        key = f"base_model.model.{module}"
        matrices[f"{key}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * 0.2
        matrices[f"{key}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.2
    if edit is not None:
        edit(matrices)
    save_file(matrices, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "example/tiny",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": list(targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
        **config,
    }
    given = {name: value for name, value in values.items() if value is not None}
    (folder / "adapter_config.json").write_text(json.dumps(given, indent=2))
    return folder
