"""Look at a model's or tokenizer's folder before anything is loaded from it: what it lacks, in a sentence that names the file and says
what helps. Libraries read the folder's files in an order of their own and blame whichever they meet first.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pratique_contract.canonical import JSON_ERRORS
from pratique_server.artifacts.errors import FolderError
from pratique_server.artifacts.files import TOKENIZER_BYTE_FILES, TOKENIZER_JSON_FILES, is_pickle, is_there

CONFIG_FILE: Final = "config.json"
ADAPTER_CONFIG_FILE: Final = "adapter_config.json"
_WEIGHTS: Final = "model.safetensors"
_WEIGHTS_INDEX: Final = "model.safetensors.index.json"
_OPTIONAL_FILES: Final = ("generation_config.json", "chat_template.jinja")
_TOKENIZER_FILES: Final = (*TOKENIZER_BYTE_FILES, *TOKENIZER_JSON_FILES)
_TOKENIZER_OBJECTS: Final = ("tokenizer.json", "tokenizer_config.json", CONFIG_FILE)  # the last names the class
# What a vocabulary may be called, generously: whether it can be loaded is the library's to say.
_VOCABULARY: Final = re.compile(r"tokenizer\b(?!_config).*|vocab.*|tekken.*|.*\.(?:model|tiktoken|codes)")
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES_MAX: Final = 1024
_NAMES_SHOWN: Final = 5


def require_model_folder(folder: Path) -> None:
    """Raise ``FolderError`` for a folder from which no model can be loaded. Nothing large is read: the rest is told by loading."""
    _require_folder(folder, "model")
    if not is_there(folder / CONFIG_FILE):
        raise FolderError(f"{folder} has no {CONFIG_FILE}{_explain_no_config(folder)}")
    _require_json_object(folder / CONFIG_FILE)
    for name in (_WEIGHTS, _WEIGHTS_INDEX, *_OPTIONAL_FILES):
        _require_file(folder / name)
    if not (folder / _WEIGHTS).exists() and not (folder / _WEIGHTS_INDEX).exists():
        raise FolderError(f"{folder} has neither {_WEIGHTS} nor {_WEIGHTS_INDEX}{_explain_no_weights(folder)}")


def require_tokenizer_folder(folder: Path) -> None:
    """Raise ``FolderError`` for a folder from which no tokenizer can be loaded."""
    _require_folder(folder, "tokenizer")
    for name in _TOKENIZER_FILES:
        _require_file(folder / name)
    for name in _TOKENIZER_OBJECTS:
        if is_there(folder / name):
            _require_json_object(folder / name)
    if not any(_VOCABULARY.fullmatch(name) for name in _names(folder)):
        raise FolderError(
            f"{folder} has no tokenizer.json{_instead(_names(folder))}: copy the tokenizer's files from where the model comes from, or "
            "name the folder that has them (--tokenizer, spec.tokenizer)"
        )


def _require_folder(folder: Path, what: str) -> None:
    if folder.is_dir():
        return
    if folder.exists():
        raise FolderError(f"The {what} folder {folder} is a file: name the folder with the {what}'s files")
    raise FolderError(f"The {what} folder {folder} does not exist")


def _require_file(path: Path) -> None:
    """What is there is a file, and its own content."""
    if path.is_symlink() and not path.exists():
        raise FolderError(f"{path} is a link to {path.readlink()}, which is not there: fetch or copy the folder again")
    if path.exists() and not path.is_file():
        raise FolderError(f"{path} is a folder, and a file of this name is needed")
    if path.exists() and _is_pointer(path):
        raise FolderError(
            f"{path} is a Git LFS pointer to the file and not the file: run `git lfs pull` there, or `pratique fetch`"
        )


def _require_json_object(path: Path) -> None:
    _require_file(path)
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror or error}") from error
    except JSON_ERRORS as error:
        raise FolderError(f"{path} is not JSON ({error}): fetch or copy it again") from error
    if not isinstance(value, dict):
        raise FolderError(f"{path} holds a {type(value).__name__}, not a JSON object: fetch or copy it again")


def _is_pointer(path: Path) -> bool:
    try:
        if path.stat().st_size > _POINTER_BYTES_MAX:
            return False
        return path.read_bytes().startswith(_POINTER)
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror or error}") from error


def _explain_no_config(folder: Path) -> str:
    names = _names(folder)
    if not names:
        return ": it is empty. `pratique fetch URI DIR` fills a folder"
    if ADAPTER_CONFIG_FILE in names:
        return (
            f", but an {ADAPTER_CONFIG_FILE}: it is an adapter's. Name the model's folder, and this one with --adapter"
        )
    if any(name.endswith(".gguf") for name in names):
        return f"{_instead(names)}: GGUF files are not loaded. Take the model's safetensors, with their {CONFIG_FILE}"
    # One level down, as archives and caches keep them.
    below = sorted(path.parent for pattern in ("*", "snapshots/*") for path in folder.glob(f"{pattern}/{CONFIG_FILE}"))
    if below:
        return f"; {_shown(str(path) for path in below)} has one: name the folder that holds the model's files"
    return (
        f"{_instead(names)}: name the folder that holds the model's files, or copy it from where the model comes from"
    )


def _explain_no_weights(folder: Path) -> str:
    names = _names(folder)
    if pickles := [name for name in names if is_pickle(name)]:
        return f"{_instead(pickles)}: files that can run code when they are read are refused. Convert the model to safetensors"
    if quantized := [name for name in names if name.endswith(".gguf")]:
        return f"{_instead(quantized)}: GGUF files are not loaded. Take the model's safetensors"
    if others := [name for name in names if name.endswith(".safetensors")]:
        return f"{_instead(others)}: without the index nothing says which of them belong together. Fetch or copy it too"
    return ": fetch or copy the weights too"


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise FolderError(f"{folder} cannot be read: {error.strerror or error}") from error


def _instead(names: list[str]) -> str:
    return f", only {_shown(names)}" if names else ""


def _shown(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _NAMES_SHOWN} more" if len(every) > _NAMES_SHOWN else ""
    return ", ".join(every[:_NAMES_SHOWN]) + more
