"""Which files are fetched: what an engine loads, never what can run code."""

import pytest

from pratique_contract.reasons import Reason
from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.selection import Wanted, is_safe, require_usable, select


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "config.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "tokenizer.model",
        "qwen.tiktoken",
        "vocab.txt",
        "merges.txt",
    ],
)
def test_what_an_engine_loads_is_taken(name: str) -> None:
    assert select([name], Wanted()).taken == (name,)


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "pytorch_model-00001-of-00002.BIN",
        "model.pt",
        "model.pth",
        "consolidated.00.pth",
        "optimizer.pkl",
        "last.ckpt",
        "modeling_x.py",
        "README.md",
        "model.gguf",
        "onnx/model.safetensors",
        "notes.txt",
        ".hidden.json",
        "../config.json",
        "/config.json",
        "a//b.json",
        "a\\b.json",
        "a\x00.json",
        "config\u202e.json",
    ],
)
def test_everything_else_is_left_out_with_a_reason(name: str) -> None:
    selection = select([name], Wanted())
    assert selection.taken == ()
    assert selection.left_out[name]


def test_weights_in_a_second_layout_are_left_out() -> None:
    """Some repositories hold the same weights twice: tens of gigabytes for nothing."""
    names = ["consolidated.safetensors", "model-00001-of-00001.safetensors"]
    assert select(names, Wanted()).taken == ("model-00001-of-00001.safetensors",)
    assert select(names[:1], Wanted()).taken == ("consolidated.safetensors",)


def test_code_comes_from_sub_folders_too_once_it_is_declared() -> None:
    assert select(["modeling.py", "parts/layer.py"], Wanted(code=True)).taken == ("modeling.py", "parts/layer.py")


@pytest.mark.parametrize("name", ["", ".", "..", "a/", "/a", "a/../b", "x" * 256, "a/.b"])
def test_a_name_that_does_not_stay_in_its_folder_is_not_safe(name: str) -> None:
    assert not is_safe(name)


@pytest.mark.parametrize(
    ("names", "wanted", "part"),
    [
        (["pytorch_model.bin", "config.json"], Wanted(), "convert the model"),
        (["config.json"], Wanted(), "holds no .safetensors"),
        (["README.md"], Wanted(weights=False), "holds no tokenizer file; it has README.md"),
        ([], Wanted(weights=False), "it is empty"),
    ],
)
def test_what_could_not_be_loaded_is_not_fetched(names: list[str], wanted: Wanted, part: str) -> None:
    with pytest.raises(FetchError, match=part) as raised:
        require_usable(select(names, wanted), wanted, "hf://o/n")
    assert raised.value.reason is Reason.DOWNLOAD_FAILED
