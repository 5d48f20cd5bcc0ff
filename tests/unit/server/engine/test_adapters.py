"""A LoRA adapter is merged exactly as its file says, or refused by name with the reason."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pratique_contract.serving import AdapterSource, ModelSource, QuantizationSpec
from pratique_server.engine.loader import LoadedModel, load_model
from pratique_server.engine.protocol import LoadError
from tests.support.adapters import Matrices, make_adapter
from tests.unit.server.engine.makers import make_engine, make_request, run

Q0 = "model.layers.0.self_attn.q_proj"


def source(model: Path, *adapters: Path, uri: str = "file:///tiny", revision: str | None = None) -> ModelSource:
    declared = tuple(AdapterSource(name=folder.name, path=str(folder), uri="file:///a") for folder in adapters)
    return ModelSource(path=str(model), uri=uri, revision=revision, adapters=declared)


def load(model: Path, *adapters: Path, **options: Any) -> LoadedModel:
    return load_model(source(model, *adapters), **options)


def weights(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    return dict(loaded.model.state_dict())


def delta(adapter: Path, module: str, scale: float) -> torch.Tensor:
    """The published formula: ΔW = scale · B · A."""
    matrices = load_file(adapter / "adapter_model.safetensors")
    key = f"base_model.model.{module}"
    return matrices[f"{key}.lora_B.weight"].float() @ matrices[f"{key}.lora_A.weight"].float() * scale


@pytest.mark.req("R65")
def test_adds_scale_times_b_times_a_to_the_targets_and_to_nothing_else(tiny_model_dir: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "harbour", tiny_model_dir, rank=4, alpha=8)
    base, loaded = weights(load(tiny_model_dir)), load(tiny_model_dir, adapter)
    for name, tensor in weights(loaded).items():
        module = name.removesuffix(".weight")
        targeted = module.endswith(("q_proj", "v_proj"))
        expected = base[name] + delta(adapter, module, 8 / 4) if targeted else base[name]
        assert torch.equal(tensor, expected), name
        assert targeted is not torch.equal(tensor, base[name])
    (entry,) = loaded.adapters
    assert (entry.name, entry.mode) == ("harbour", "Merged")
    assert [file.path for file in entry.files] == ["adapter_config.json", "adapter_model.safetensors"]
    assert entry.lineage == {
        "baseModel": "example/tiny",
        "rank": "4",
        "alpha": "8",
        "scaling": "alpha/rank",
        "targets": "q_proj,v_proj",
    }


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"use_rslora": True}, 8 / math.sqrt(4)),
        ({"alpha_pattern": {"q_proj": 20}}, 20 / 4),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 2, "q_proj": 20}}, 2 / 4),
        ({"alpha_pattern": {"v_proj": 20}}, 8 / 4),
        ({"rank_pattern": {"q_proj": 4}, "r": 4}, 8 / 4),
    ],
)
def test_the_scale_is_the_files_own(tiny_model_dir: Path, tmp_path: Path, config: dict[str, Any], scale: float) -> None:
    adapter = make_adapter(tmp_path / "a", tiny_model_dir, **config)
    base, merged = weights(load(tiny_model_dir)), weights(load(tiny_model_dir, adapter))
    assert torch.equal(merged[f"{Q0}.weight"], base[f"{Q0}.weight"] + delta(adapter, Q0, scale))


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("alpha_pattern", ("layers.0.self_attn.q_proj", 2), ("q_proj", 20)),
        ("alpha_pattern", ("v_proj", 2), ("q_proj", 20)),
        ("alpha_pattern", ("layers.0.self_attn.q_proj", 20), ("q_proj", 20)),
    ],
    ids=["decides", "different layers", "same value"],
)
def test_two_orders_that_merge_otherwise_are_two_releases(
    tiny_model_dir: Path, tmp_path: Path, name: str, first: tuple[str, int], second: tuple[str, int]
) -> None:
    """The first pattern that fits counts, and a JSON value's digest does not know an order."""
    loaded = [
        load(tiny_model_dir, make_adapter(tmp_path / str(n) / "a", tiny_model_dir, **{name: dict(order)}))
        for n, order in enumerate([(first, second), (second, first)])
    ]
    one, other = (entry.adapters[0] for entry in loaded)
    assert one.files == other.files
    same = torch.equal(*(weights(entry)[f"{Q0}.weight"] for entry in loaded))
    assert (one.lineage == other.lineage) is same


def test_only_the_layers_that_the_configuration_names_are_targets(tiny_model_dir: Path, tmp_path: Path) -> None:
    def drop_first_layer(matrices: Matrices) -> None:
        for name in [name for name in matrices if ".layers.0." in name]:
            del matrices[name]

    adapter = make_adapter(tmp_path / "a", tiny_model_dir, layers_to_transform=[1], edit=drop_first_layer)
    base, merged = weights(load(tiny_model_dir)), weights(load(tiny_model_dir, adapter))
    assert torch.equal(merged[f"{Q0}.weight"], base[f"{Q0}.weight"])
    assert not torch.equal(merged[f"{Q0.replace('0', '1')}.weight"], base[f"{Q0.replace('0', '1')}.weight"])


def test_adapters_are_summed_in_float32_in_their_order_and_rounded_once(tiny_model_dir: Path, tmp_path: Path) -> None:
    first = make_adapter(tmp_path / "first", tiny_model_dir, seed=1)
    second = make_adapter(tmp_path / "second", tiny_model_dir, seed=2)
    base = weights(load(tiny_model_dir, dtype="BF16"))[f"{Q0}.weight"]
    merged = weights(load(tiny_model_dir, first, second, dtype="BF16"))[f"{Q0}.weight"]
    expected = base.float() + delta(first, Q0, 2) + delta(second, Q0, 2)
    assert merged.dtype is torch.bfloat16
    assert torch.equal(merged, expected.bfloat16())


def test_the_number_of_threads_does_not_change_the_merged_weights(tiny_model_dir: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "a", tiny_model_dir, rank=7, targets=["q_proj", "up_proj", "down_proj"])
    one = weights(load(tiny_model_dir, adapter))
    try:
        torch.set_num_threads(2)
        two = weights(load(tiny_model_dir, adapter))
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("engine", ["Torch", "Naive"])
def test_the_engine_answers_with_the_adapter(engine: str, tiny_model_dir: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "a", tiny_model_dir)
    plain = make_engine(tiny_model_dir, name=engine)
    changed = make_engine(tiny_model_dir, name=engine, source=source(tiny_model_dir, adapter))
    assert run(changed, make_request())["r"].ids != run(plain, make_request())["r"].ids
    assert [entry.name for entry in changed.identity().adapters] == ["a"]


def test_what_is_merged_is_then_quantized(tiny_model_dir: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "a", tiny_model_dir)
    exact = weights(load(tiny_model_dir, adapter))[f"{Q0}.weight"]
    quantized = load(tiny_model_dir, adapter, quantization=QuantizationSpec(method="Int8WeightOnly"))
    expanded = quantized.model.get_submodule(Q0).expanded()
    step = exact.abs().amax(dim=1, keepdim=True) / 127
    assert ((expanded - exact).abs() <= step * 0.5001).all()


def remove(name: str) -> Callable[[Matrices], Any]:
    return lambda matrices: matrices.pop(name)


def cut(name: str) -> Callable[[Matrices], Any]:
    def edit(matrices: Matrices) -> None:
        matrices[name] = matrices[name][:, :-1].contiguous()

    return edit


A0 = f"base_model.model.{Q0}.lora_A.weight"
B0 = f"base_model.model.{Q0}.lora_B.weight"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"edit": remove(A0)}, f"lacks {Q0}.lora_A.weight"),
        ({"edit": remove(B0)}, f"lacks {Q0}.lora_B.weight"),
        ({"edit": cut(A0)}, f"{Q0} is 64×64 in this model .* it belongs to another model"),
        ({"edit": lambda m: [m.pop(A0), m.pop(B0)]}, f"lacks matrices for {Q0}, which adapter_config.json targets"),
        ({"edit": lambda m: m.update(extra=torch.zeros(1))}, "holds extra, which is no LoRA matrix"),
        (
            {"edit": lambda m: m.update({f"base_model.model.{Q0}.base_layer.weight": torch.zeros(64, 64)})},
            f"holds another {Q0}.weight than this model",
        ),
        ({"edit": lambda m: m.update({A0: m[A0].to(torch.int8)})}, "a quantized adapter cannot be merged"),
        ({"target_modules": ["q_proj"]}, "holds matrices for .*v_proj.* does not target"),
        ({"target_modules": ["q_proj", "v_proj", "w_proj"]}, "targets w_proj, which is no linear layer"),
        ({"target_modules": ["q_proj", "v_proj", "mlp"]}, "targets mlp, which is no linear layer"),
        ({"target_modules": None}, "names no target_modules"),
        ({"target_modules": "(["}, "no valid expression"),
        ({"r": 8}, "its rank is 8, but the adapter holds A"),
        ({"r": 0}, "has r 0"),
        ({"lora_alpha": "8"}, "has lora_alpha '8'"),
        ({"lora_alpha": None}, "has lora_alpha None"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"use_dora": True}, "sets use_dora"),
        ({"bias": "all"}, "trains biases"),
        ({"modules_to_save": ["lm_head"]}, r"sets modules_to_save \(\['lm_head'\]\)"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa'"),
        ({"lora_bias": True}, "sets lora_bias"),
        ({"layer_replication": [[0, 1]]}, "sets layer_replication"),
        ({"a_rule_of_next_year": 1}, "sets a_rule_of_next_year"),
    ],
)
def test_refuses_an_adapter_it_cannot_apply_as_trained(
    tiny_model_dir: Path, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    adapter = make_adapter(tmp_path / "harbour", tiny_model_dir, **change)
    with pytest.raises(LoadError, match=f"^Adapter harbour: .*{sentence}") as caught:
        load(tiny_model_dir, adapter)
    assert caught.value.part == "adapters"


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda f: (f / "adapter_config.json").unlink(), "has no adapter_config.json"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "not valid JSON"),
        (lambda f: (f / "adapter_config.json").write_text("[" * 100_000), "not valid JSON"),
        (lambda f: (f / "adapter_config.json").write_text("3"), "one JSON object"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
        (lambda f: (f / "adapter_model.safetensors").rename(f / "adapter_model.bin"), "can run code"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"\x80\x04."), "is truncated"),
    ],
)
def test_refuses_a_folder_that_holds_no_adapter(
    tiny_model_dir: Path, tmp_path: Path, break_it: Callable[[Path], Any], sentence: str
) -> None:
    adapter = make_adapter(tmp_path / "a", tiny_model_dir)
    break_it(adapter)
    with pytest.raises(LoadError, match=f"^Adapter a: .*{sentence}") as caught:
        load(tiny_model_dir, adapter)
    assert caught.value.part == "adapters"


def test_the_same_matrices_under_another_name_are_not_merged_twice(tiny_model_dir: Path, tmp_path: Path) -> None:
    first = make_adapter(tmp_path / "a", tiny_model_dir)
    again = make_adapter(tmp_path / "b", tiny_model_dir, alpha=16)
    with pytest.raises(LoadError, match="Adapter b holds the same weights as a: they would be merged twice") as caught:
        load(tiny_model_dir, first, again)
    assert caught.value.part == "adapters"


def test_a_shared_language_head_is_not_changed_behind_the_embeddings_back(tiny_model_dir: Path, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "tied")

    def add_head(matrices: Matrices) -> None:
        matrices["base_model.model.lm_head.lora_A.weight"] = torch.zeros(4, 16)
        matrices["base_model.model.lm_head.lora_B.weight"] = torch.zeros(32, 4)

    adapter = make_adapter(
        tmp_path / "a", tmp_path / "tied", edit=add_head, target_modules=["q_proj", "v_proj", "lm_head"]
    )
    with pytest.raises(LoadError, match="targets lm_head, whose weight is also the input embedding"):
        load(tmp_path / "tied", adapter)


@pytest.mark.parametrize(
    ("base", "base_revision", "uri", "revision", "refused"),
    [
        ("Org/Model", None, "hf://org/model", "1" * 40, False),
        ("org/other", None, "hf://org/model", "1" * 40, True),
        ("/home/me/model", None, "hf://org/model", "1" * 40, False),
        ("org/other", None, "pvc://claim/model", None, False),
        ("org/model", "2" * 40, "hf://org/model", "1" * 40, True),
        ("org/model", "1" * 40, "hf://org/model@" + "1" * 40, None, False),
        ("org/model", "main", "hf://org/model", "1" * 40, False),
    ],
)
def test_an_adapter_of_another_base_model_is_refused_where_both_say_what_they_are(
    tiny_model_dir: Path, tmp_path: Path, base: str, base_revision: str | None, uri: str, revision: str | None,
    refused: bool,
) -> None:  # fmt: skip
    adapter = make_adapter(tmp_path / "a", tiny_model_dir, base_model_name_or_path=base, revision=base_revision)
    declared = source(tiny_model_dir, adapter, uri=uri, revision=revision)
    if not refused:
        assert load_model(declared).adapters[0].lineage["baseModel"] == base
        return
    with pytest.raises(LoadError, match="says that it was trained on"):
        load_model(declared)


def test_gpt2s_transposed_layers_are_merged_the_right_way_round(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=64)).save_pretrained(
        tmp_path / "gpt2"
    )
    module = "transformer.h.0.attn.c_attn"

    def rewrite(matrices: Matrices) -> None:
        matrices.clear()
        matrices[f"base_model.model.{module}.lora_A.weight"] = torch.randn(4, 16)
        matrices[f"base_model.model.{module}.lora_B.weight"] = torch.randn(48, 4)

    adapter = make_adapter(tmp_path / "a", tmp_path / "gpt2", edit=rewrite, targets=(), target_modules=["c_attn"])
    base, merged = weights(load(tmp_path / "gpt2")), weights(load(tmp_path / "gpt2", adapter))
    assert torch.equal(merged[f"{module}.weight"], base[f"{module}.weight"] + delta(adapter, module, 2).T)
