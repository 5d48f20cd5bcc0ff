"""A folder that is broken or not all there: every command that takes one says which file, and what helps, before it loads anything."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.releases import make_record
from tests.unit.cli.conftest import Run

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 1\n"
Break = Callable[[Path], object]


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _only(name: str) -> Break:
    def change(folder: Path) -> None:
        _empty(folder)
        (folder / name).write_bytes(b"GGUF")

    return change


def _without(*names: str) -> Break:
    return lambda folder: [(folder / name).unlink() for name in names]


def _holds(name: str, content: bytes) -> Break:
    return lambda folder: (folder / name).write_bytes(content)


def _folder(name: str) -> Break:
    return lambda folder: ((folder / name).unlink(), (folder / name).mkdir())


def _dangling(name: str) -> Break:
    return lambda folder: ((folder / name).unlink(), (folder / name).symlink_to("../blobs/none"))


def _renamed(name: str, new: str) -> Break:
    return lambda folder: (folder / name).rename(folder / new)


def _moved_down(folder: Path) -> None:
    below = folder / "snapshots" / "0a1b"
    below.mkdir(parents=True)
    for path in [path for path in folder.iterdir() if path.is_file()]:
        path.rename(below / path.name)


@pytest.fixture
def folder(tiny_model_dir: Path, tmp_path: Path) -> Path:
    made = Path(shutil.copytree(tiny_model_dir, tmp_path / "tiny"))
    for path in (made, *made.rglob("*")):
        path.chmod(0o755)
    return made


# What happens to a good folder: the file that is named, and what helps.
MODELS: dict[str, tuple[Break, str, str]] = {
    "no config": (_without("config.json"), "tiny has no config.json, only ", "name the folder that holds"),
    "empty": (_empty, "tiny has no config.json: it is empty", "pratique fetch"),
    "only GGUF": (_only("m.gguf"), "tiny has no config.json, only m.gguf", "Take the model's safetensors"),
    "an adapter's": (_only("adapter_config.json"), "an adapter_config.json", "--adapter"),
    "one level up": (_moved_down, "tiny/snapshots/0a1b has one", "name the folder that holds"),
    "config is a folder": (_folder("config.json"), "tiny/config.json is a folder", "a file of this name"),
    "config is cut": (_holds("config.json", b'{"a'), "tiny/config.json is not JSON", "fetch or copy it again"),
    "config is a list": (_holds("config.json", b"[]"), "tiny/config.json holds a list", "fetch or copy it again"),
    "config is not UTF-8": (_holds("config.json", b"\xff\xfe{}"), "tiny/config.json is not JSON", "again"),
    "config leads nowhere": (_dangling("config.json"), "tiny/config.json is a link to ../blobs/none", "again"),
    "no weights": (
        _without("model.safetensors"),
        "tiny has neither model.safetensors nor",
        "fetch or copy the weights",
    ),
    "pickles": (_renamed("model.safetensors", "pytorch_model.bin"), "only pytorch_model.bin", "Convert"),
    "GGUF weights": (_renamed("model.safetensors", "m.gguf"), "neither model.safetensors nor", "GGUF"),
    "shards, no index": (_renamed("model.safetensors", "model-00001-of-00002.safetensors"), "neither", "the index"),
    "weights of git": (_holds("model.safetensors", POINTER), "model.safetensors is a Git LFS pointer", "git lfs pull"),
    "weights lead nowhere": (_dangling("model.safetensors"), "tiny/model.safetensors is a link", "again"),
}
TOKENIZERS: dict[str, tuple[Break, str, str]] = {
    "none": (_without("tokenizer.json", "tokenizer_config.json"), "tiny has no tokenizer.json, only", "--tokenizer"),
    "no vocabulary": (_without("tokenizer.json"), "tiny has no tokenizer.json, only", "--tokenizer"),
    "a folder": (_folder("tokenizer.json"), "tiny/tokenizer.json is a folder", "a file of this name"),
    "cut": (_holds("tokenizer.json", b'{"a'), "tiny/tokenizer.json is not JSON", "fetch or copy it again"),
    "of git": (_holds("tokenizer.json", POINTER), "tiny/tokenizer.json is a Git LFS pointer", "git lfs pull"),
    "settings are cut": (_holds("tokenizer_config.json", b"{"), "tiny/tokenizer_config.json is not JSON", "again"),
    "settings lead nowhere": (_dangling("tokenizer_config.json"), "tiny/tokenizer_config.json is a link", "again"),
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "build": ("release", "build", "--model", "{folder}"),
    "record": ("release", "record", "--model", "{folder}"),
    "verify": ("release", "verify", "--model", "{folder}", "--record", "{record}"),
    "serve": ("serve", "--model", "{folder}", "--record", "{record}"),
}


def run(pratique: Run, command: str, folder: Path) -> tuple[int, str]:
    record = folder.parent / "record.json"
    record.write_text(make_record().to_json())
    result = pratique(*(word.format(folder=folder, record=record) for word in COMMANDS[command]))
    assert result.out == ""
    (line,) = [line for line in result.err.splitlines() if line.startswith("error: ")]
    return result.code, line


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", [*MODELS, *(f"tokenizer: {name}" for name in TOKENIZERS)])
def test_a_broken_folder_is_told_with_the_file_and_what_helps(
    pratique: Run, folder: Path, case: str, command: str
) -> None:
    change, names, helps = {**MODELS, **{f"tokenizer: {name}": value for name, value in TOKENIZERS.items()}}[case]
    change(folder)
    code, line = run(pratique, command, folder)
    assert (code, names in line, helps in line) == (3, True, True), line


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_or_nothing_in_place_of_the_folder_is_told_apart(pratique: Run, folder: Path, command: str) -> None:
    code, line = run(pratique, command, folder / "config.json")
    assert (code, "tiny/config.json is a file: name the folder" in line) == (3, True), line
    code, line = run(pratique, command, folder / "none")
    assert (code, "tiny/none does not exist" in line) == (3, True), line


def test_a_tokenizer_s_own_folder_is_looked_at_too(pratique: Run, folder: Path, tiny_model_dir: Path) -> None:
    (folder / "tokenizer.json").unlink()
    result = pratique("release", "build", "--model", tiny_model_dir, "--tokenizer", folder)
    assert (result.code, f"{folder} has no tokenizer.json" in result.err) == (3, True), result.err


def test_a_document_s_folder_is_looked_at_too(pratique: Run, folder: Path, tmp_path: Path) -> None:
    _empty(folder)
    document = tmp_path / "serving.json"
    document.write_text(
        json.dumps({"servedModelName": "tiny", "model": {"path": str(folder), "uri": folder.absolute().as_uri()}})
    )
    result = pratique("release", "build", "--config", document)
    assert (result.code, f"{folder} has no config.json: it is empty" in result.err) == (3, True), result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("release", "show", "{}"),
        ("release", "diff", "{}", "{}"),
        ("release", "review", "{}", "{}"),
        ("release", "verify", "--model", "{}", "--record", "{}"),
        ("release", "sign", "{}", "--key", "{}"),
        ("release", "build", "--config", "{}"),
        ("release", "build", "--model", "{}", "--service", "{}"),
        ("release", "build", "--model", "{}", "--chat-template", "{}"),
        ("release", "stamp", "{}", "--record", "{}"),
        ("serve", "--config", "{}"),
        ("serve", "--model", "{}", "--record", "{}"),
    ],
)
def test_a_folder_in_place_of_a_file_is_told(pratique: Run, folder: Path, arguments: tuple[str, ...]) -> None:
    result = pratique(*(argument.format(folder) for argument in arguments))
    assert (result.code, f"{folder} is a folder" in result.err) == (3, True), result.err
