"""Int8 weights, made from the checkpoint while loading: what is changed, what is kept, and that it computes what it says."""

from pathlib import Path

import pytest
import torch
from torch import nn

from pratique_contract.serving import QuantizationSpec
from pratique_server.engine.loader import LoadedModel, load_model
from pratique_server.engine.protocol import LoadError
from pratique_server.engine.quantization import AppliedQuantization, Int8Linear, normalize_config, quantize_rows
from tests.unit.server.engine.makers import make_engine, make_request, run

INT8 = QuantizationSpec(method="Int8WeightOnly")


def load(model: Path, spec: QuantizationSpec = INT8) -> LoadedModel:
    return load_model(model, quantization=spec)


@pytest.mark.req("R64")
def test_linear_layers_are_quantized_and_everything_else_is_kept(tiny_model_dir: Path) -> None:
    part = load(tiny_model_dir).quantization
    assert part.method == "Int8WeightOnly"
    assert {name.split(".")[-2] for name in part.quantized} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    assert len(part.quantized) == 2 * 7
    assert {name.split(".")[-2] for name in part.kept} == {
        "embed_tokens", "input_layernorm", "post_attention_layernorm", "norm", "lm_head",
    }  # fmt: skip


def test_each_row_has_its_own_scale_and_is_at_most_half_a_step_off() -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 32) * torch.tensor([1e-6, 1.0, 1e4, 3.0, 0.0, 1.0])[:, None]
    levels, scale = quantize_rows(weight)
    assert (levels.dtype, scale.dtype) == (torch.int8, torch.float32)
    largest = weight.abs().amax(dim=1)
    assert torch.equal(scale[largest > 0], largest[largest > 0] / 127)
    assert (levels.float().abs().amax(dim=1)[largest > 0] == 127).all()
    assert ((levels.float() * scale[:, None] - weight).abs() <= scale[:, None] * 0.5001).all()
    assert not levels[4].any()


@pytest.mark.parametrize("dtype", ["FP32", "BF16", "FP16"])
def test_it_computes_what_a_plain_model_with_the_same_weights_computes(tiny_model_dir: Path, dtype: str) -> None:
    spec = QuantizationSpec(method="Int8WeightOnly", dtype=dtype)  # type: ignore[arg-type]
    quantized = load(tiny_model_dir, spec).model
    plain = load(tiny_model_dir, QuantizationSpec(dtype=dtype)).model  # type: ignore[arg-type]
    ids = torch.tensor([[3, 5, 7, 11]])
    exact = plain(input_ids=ids).logits
    for name, module in quantized.named_modules():
        if isinstance(module, Int8Linear):
            rounded = (module.weight_int8.float() * module.scale[:, None]).to(exact.dtype)
            assert torch.equal(module.expanded(), rounded)
            plain.get_submodule(name).weight.data = module.expanded()
    logits = quantized(input_ids=ids).logits
    assert torch.equal(logits, plain(input_ids=ids).logits)
    assert logits.dtype is exact.dtype
    assert 0 < (logits - exact).float().norm() / exact.float().norm() < 0.05


@pytest.mark.parametrize("dtype", ["FP32", "BF16"])
def test_the_packed_engine_proves_itself_on_the_quantized_model(tiny_model_dir: Path, dtype: str) -> None:
    spec = QuantizationSpec(method="Int8WeightOnly", dtype=dtype)  # type: ignore[arg-type]
    engine = make_engine(tiny_model_dir, quantization=spec)
    identity = engine.identity()
    assert identity.runtime_facts["packedCheck"] == "passed"
    assert identity.runtime_facts["selfTest"]["result"] == "passed"
    assert (identity.quantization_method, len(identity.quantized_tensors)) == ("Int8WeightOnly", 14)
    alone = run(engine, make_request("alone"))["alone"].ids
    crowd = run(engine, *[make_request(f"r{n}", prompt_ids=[3 + n, 5, 7, 11]) for n in range(4)])
    assert crowd["r0"].ids == alone
    naive = make_engine(tiny_model_dir, name="Naive", quantization=spec)
    assert run(naive, make_request())["r"].ids == alone


def test_two_loads_give_the_same_bits(tiny_model_dir: Path) -> None:
    one, other = (load(tiny_model_dir).model.state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.req("R64")
def test_layers_named_in_keep_stay_as_they_are(tiny_model_dir: Path) -> None:
    spec = QuantizationSpec(method="Int8WeightOnly", config={"keep": ["*.down_proj", "model.layers.0.*"]})
    loaded = load(tiny_model_dir, spec)
    assert "model.layers.1.mlp.down_proj.weight" in loaded.quantization.kept
    assert isinstance(loaded.model.get_submodule("model.layers.0.self_attn.q_proj"), nn.Linear)
    assert len(loaded.quantization.quantized) == 6
    assert loaded.quantization.config["keep"] == ["*.down_proj", "model.layers.0.*"]


@pytest.mark.parametrize(
    ("keep", "sentence"),
    [
        (["*.no_such"], r"'\*\.no_such', which no linear layer matches \(the model has .*layers\.\*\.mlp\.down_proj"),
        (["model.layers.0"], r"no linear layer matches \(write model\.layers\.0\.\* for all below it\)"),
        (["*.down_proj", "*.down_prj"], r"'\*\.down_prj', which no linear layer matches"),
        (["*"], r"keep \('\*'\) keeps every linear layer: Int8WeightOnly finds none to quantize"),
    ],
)
def test_a_keep_that_means_nothing_or_everything_is_refused(
    tiny_model_dir: Path, keep: list[str], sentence: str
) -> None:
    with pytest.raises(LoadError, match=sentence) as caught:
        load(tiny_model_dir, QuantizationSpec(method="Int8WeightOnly", config={"keep": keep}))
    assert caught.value.part == "quantization"


def test_the_settings_in_the_manifest_are_the_same_however_they_were_written() -> None:
    spelt_out = {"symmetric": True, "bits": 8, "groupSize": None, "keep": ["b", "a", "b"]}
    assert normalize_config(QuantizationSpec(method="Int8WeightOnly", config=spelt_out)) == {
        **normalize_config(INT8),
        "keep": ["a", "b"],
    }


def test_spellings_that_keep_the_same_layers_are_one_release(tiny_model_dir: Path) -> None:
    def loaded(*keep: str) -> AppliedQuantization:
        return load(tiny_model_dir, QuantizationSpec(method="Int8WeightOnly", config={"keep": list(keep)})).quantization

    one = loaded("*.down_proj", "model.layers.0.*")
    assert loaded("model.layers.0.*", "*.down_proj", "model.layers.0.*") == one
    assert loaded("*.down_proj", "model.layers.0.*", "lm_head", "model.embed_tokens", "*norm") == one
    assert loaded() == load(tiny_model_dir).quantization
    assert loaded("model.layers.0.*") != one


def test_a_layer_may_be_named_as_the_manifest_names_its_weight(tiny_model_dir: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    part = load(tiny_model_dir, QuantizationSpec(method="Int8WeightOnly", config={"keep": [name]})).quantization
    assert name in part.kept
    assert len(part.quantized) == 13


@pytest.mark.parametrize(
    "config", [{"keep": ["layers[01]"]}, {"bits": 4}, {"bits": True}, {"groupSize": 128}, {"group": 1}, {"keep": [""]}]
)
def test_a_setting_it_does_not_have_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(LoadError, match=r"quantization\.config") as caught:
        normalize_config(QuantizationSpec(method="Int8WeightOnly", config=config))
    assert caught.value.part == "quantization"
