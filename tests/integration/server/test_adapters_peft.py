"""Adapters that PEFT itself made and saved: merged here, they give bit for bit what PEFT's own merging gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pratique_contract.serving import AdapterSource, ModelSource
from pratique_server.engine.loader import load_model
from pratique_server.engine.protocol import LoadError

pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT's and transformers' own

SUPPORTED: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["q_proj", "v_proj"]},
    "all linear layers": {"target_modules": "all-linear"},
    "rank-stabilised": {"target_modules": ["q_proj"], "use_rslora": True},
    "patterns": {
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"down_proj": 2, "layers.1.self_attn.q_proj": 3},
        "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 3, "q_proj": 40},
    },
    "an expression": {"target_modules": r".*\.layers\.1\..*(k|v)_proj"},
    "some layers": {"target_modules": ["up_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
    "without some": {"target_modules": ["q_proj", "o_proj"], "exclude_modules": ["layers.0.self_attn.o_proj"]},
    "language head": {"target_modules": ["lm_head"]},
}


def train(model: Path, folder: Path, **config: Any) -> Path:
    """An adapter as PEFT saves it, with values that do something."""
    from peft import LoraConfig, get_peft_model  # not above: every worker reads this file, and one runs it

    torch.manual_seed(7)
    base = AutoModelForCausalLM.from_pretrained(model, local_files_only=True)
    adapted = get_peft_model(base, LoraConfig(**{"r": 4, "lora_alpha": 10, "task_type": "CAUSAL_LM", **config}))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.2)
    adapted.save_pretrained(folder)
    return folder


def load(model: Path, *adapters: Path) -> dict[str, torch.Tensor]:
    declared = tuple(AdapterSource(name=folder.name, path=str(folder), uri="file:///a") for folder in adapters)
    loaded = load_model(ModelSource(path=str(model), uri="file:///m", adapters=declared))
    return dict(loaded.model.state_dict())


def merge_with_peft(model: Path, *adapters: Path) -> dict[str, torch.Tensor]:
    from peft import PeftModel

    merged: Any = AutoModelForCausalLM.from_pretrained(model, local_files_only=True)
    for adapter in adapters:
        merged = PeftModel.from_pretrained(merged, adapter).merge_and_unload()
    return dict(merged.state_dict())


@pytest.mark.req("R65")
@pytest.mark.parametrize("kind", SUPPORTED)
def test_merges_as_peft_merges(kind: str, tiny_model_dir: Path, tmp_path: Path) -> None:
    adapter = train(tiny_model_dir, tmp_path / "a", **SUPPORTED[kind])
    base, ours, theirs = load(tiny_model_dir), load(tiny_model_dir, adapter), merge_with_peft(tiny_model_dir, adapter)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert any(not torch.equal(ours[name], base[name]) for name in ours)


def test_merges_two_in_their_order_as_peft_merges_one_after_the_other(tiny_model_dir: Path, tmp_path: Path) -> None:
    first = train(tiny_model_dir, tmp_path / "first", target_modules=["q_proj"])
    second = train(tiny_model_dir, tmp_path / "second", target_modules=["q_proj", "v_proj"], r=2)
    ours, theirs = load(tiny_model_dir, first, second), merge_with_peft(tiny_model_dir, first, second)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"target_modules": ["q_proj"], "use_dora": True}, "sets use_dora"),
        ({"target_modules": ["q_proj"], "lora_bias": True}, "sets lora_bias"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "sets modules_to_save"),
        ({"target_modules": ["embed_tokens"]}, "targets embed_tokens, which is no linear layer"),
        ({"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]}, "sets trainable_token_indices"),
        ({"target_modules": ["q_proj"], "init_lora_weights": "pissa"}, "init_lora_weights 'pissa'"),
        ({"target_modules": ["q_proj"], "bias": "lora_only"}, "trains biases"),
    ],
)
def test_refuses_what_peft_would_apply_otherwise(
    config: dict[str, Any], sentence: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    adapter = train(tiny_model_dir, tmp_path / "a", **config)
    with pytest.raises(LoadError, match=sentence) as caught:
        load(tiny_model_dir, adapter)
    assert caught.value.part == "adapters"
