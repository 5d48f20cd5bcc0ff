"""A model folder is loaded whole or refused with a sentence that names the file or the field."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pratique_server.engine.loader import load_model
from pratique_server.engine.protocol import LoadError

Weights = dict[str, torch.Tensor]


@pytest.fixture
def folder(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def edit_weights(folder: Path, edit: Callable[[Weights], Any]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    edit(weights)
    save_file(weights, path)


def shard(folder: Path) -> dict[str, str]:
    """Split the weights in two files with an index, as large models are published."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    weight_map = {}
    for number, part in enumerate([names[:7], names[7:]], start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_loads_every_tensor_unchanged(tiny_model_dir: Path) -> None:
    loaded = load_model(tiny_model_dir)
    expected = load_file(tiny_model_dir / "model.safetensors")
    state = loaded.model.state_dict()
    assert loaded.tensors == sorted(expected) == sorted(state)
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    assert (loaded.architecture, loaded.dtype, loaded.context_limit) == ("LlamaForCausalLM", "FP32", 512)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert [entry.path for entry in loaded.files] == ["config.json", "model.safetensors"]


def test_shards_give_the_same_model_and_every_file_is_listed(folder: Path) -> None:
    single = load_model(folder).model.state_dict()
    shard(folder)
    loaded = load_model(folder)
    assert all(torch.equal(tensor, single[name]) for name, tensor in loaded.model.state_dict().items())
    assert [entry.path for entry in loaded.files] == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]


def test_casts_to_the_asked_dtype(tiny_model_dir: Path) -> None:
    loaded = load_model(tiny_model_dir, dtype="BF16")
    assert loaded.dtype == "BF16"
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}


def test_a_tied_head_may_be_absent(folder: Path) -> None:
    edit_config(folder, tie_word_embeddings=True)
    edit_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    model = load_model(folder).model
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_a_changed_byte_changes_the_digest_of_that_file_only(folder: Path) -> None:
    before = load_model(folder).files
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    after = load_model(folder).files
    assert [old.path for old, new in zip(before, after, strict=True) if old.sha256 != new.sha256] == [path.name]


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda f: edit_weights(f, lambda w: w.pop("model.norm.weight")), "lacks tensors .* model.norm.weight"),
        (lambda f: edit_weights(f, lambda w: w.update(extra=torch.zeros(1))), "no place for: extra"),
        (
            lambda f: edit_weights(f, lambda w: w.update({"model.norm.weight": torch.zeros(3)})),
            r"wrong shape .* model.norm.weight \(checkpoint \[3\], architecture \[64\]\)",
        ),
        (lambda f: edit_config(f, num_hidden_layers=3), "lacks tensors"),
        (lambda f: edit_config(f, num_hidden_layers=1), "no place for"),
        (lambda f: edit_config(f, model_type="x", auto_map={"AutoModel": "x.Y"}), "only with model.trustRemoteCode"),
        (lambda f: edit_config(f, model_type="no-such-model"), "does not know"),
        (lambda f: edit_config(f, model_type=None), "does not know"),
        (lambda f: edit_config(f, architectures=["BertModel"]), "declares the architecture BertModel"),
        (lambda f: edit_config(f, hidden_act="no-such-act"), "could not be built"),
        (lambda f: edit_config(f, dtype="float64"), "says dtype float64"),
        (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "one JSON object"),
        (lambda f: (f / "config.json").write_text("[" * 100_000), "not valid JSON"),
        (lambda f: edit_config(f, architectures=5), "declares the architecture 5"),
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "has neither"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "can run code"),
        (lambda f: write_index(f, {}), "both model.safetensors and"),
    ],
)
def test_refuses_a_folder_that_is_not_whole(folder: Path, break_it: Callable[[Path], Any], sentence: str) -> None:
    break_it(folder)
    with pytest.raises(LoadError, match=sentence):
        load_model(folder)


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda f, m: (f / m["lm_head.weight"]).unlink(), "names .* which the folder does not have"),
        (lambda f, m: write_index(f, m | {"ghost": m["lm_head.weight"]}), "lacks ghost"),
        (lambda f, m: write_index(f, {k: v for k, v in m.items() if k != "lm_head.weight"}), "holds lm_head.weight"),
        (lambda f, m: write_index(f, m | {"x": "../../etc/x.safetensors"}), "in the same folder"),
        (lambda f, m: write_index(f, m | {"x": "weights.bin"}), "in the same folder"),
        (lambda f, m: (f / "model.safetensors.index.json").write_text("{}"), "not a valid index"),
        (lambda f, m: (f / "model.safetensors.index.json").write_text("[" * 100_000), "not a valid index"),
    ],
)
def test_refuses_shards_that_contradict_their_index(
    folder: Path, break_it: Callable[[Path, dict[str, str]], Any], sentence: str
) -> None:
    break_it(folder, shard(folder))
    with pytest.raises(LoadError, match=sentence):
        load_model(folder)


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda f: edit_config(f, quantization_config={"quant_method": "fp8"}), r"\(quantization_config: fp8\)"),
        (lambda f: edit_config(f, text_config={"quantization_config": {"bits": 4}}), "quantized checkpoint"),
        (lambda f: edit_config(f, compression_config={"format": "x"}), "compression_config"),
        (lambda f: (f / "hf_quant_config.json").write_text("{}"), "has hf_quant_config.json"),
        (lambda f: edit_weights(f, lambda w: quantize_one(w, torch.int8)), "q_proj.weight as integers"),
        (
            lambda f: edit_weights(f, lambda w: quantize_one(w, torch.float8_e4m3fn)),
            "q_proj.weight is stored as F8_E4M3",
        ),
        (lambda f: edit_config(f, dtype="float8_e4m3fn"), "says dtype float8"),
    ],
)
def test_a_checkpoint_that_is_quantized_already_is_refused_and_never_read_without_its_scales(
    folder: Path, break_it: Callable[[Path], Any], sentence: str
) -> None:
    """Weights taken for numbers without the scales that belong to them load, answer, and are wrong."""
    break_it(folder)
    with pytest.raises(LoadError, match=sentence) as caught:
        load_model(folder)
    assert caught.value.part == "quantization"


def quantize_one(weights: Weights, dtype: torch.dtype) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    weights[name] = weights[name].to(dtype)


def test_pickles_left_by_training_are_not_opened(folder: Path) -> None:
    for name in ("optimizer.pt", "training_args.bin", "pytorch_model.bin"):
        (folder / name).write_bytes(b"\x80\x04cos\nsystem\n.")
    assert "optimizer.pt" not in {entry.path for entry in load_model(folder).files}
    (folder / "model.safetensors").unlink()
    with pytest.raises(LoadError, match=r"only as pytorch_model\.bin; files that can run code"):
        load_model(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(LoadError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json\.$"):
        load_model(folder)


def test_an_adapter_in_the_models_own_folder_is_not_passed_over(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(LoadError, match=r"Declare it in model\.adapters") as caught:
        load_model(folder)
    assert caught.value.part == "adapters"


def test_how_the_weights_were_read_is_measured(folder: Path) -> None:
    shard(folder)
    facts = load_model(folder).reading.describe()
    assert facts["bytes"] == sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert facts["seconds"] > 0
    assert facts["gigabytesPerSecond"] > 0
    assert facts["files"] == 2


def test_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="does not exist"):
        load_model(tmp_path / "nothing")
