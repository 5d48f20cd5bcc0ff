"""The tokenizer's files in a folder, hashed so that each fact is in one manifest part, and what its configuration adds by itself."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pratique_contract.canonical import JSON_ERRORS
from pratique_server.artifacts.errors import ManifestError
from pratique_server.artifacts.files import (
    TOKENIZER_BYTE_FILES,
    TOKENIZER_JSON_FILES,
    LoadedFile,
    hash_bytes_file,
    hash_json_bytes,
    is_there,
)

TOKENIZER_CONFIG_FILE: Final = "tokenizer_config.json"


@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """What a tokenizer's folder says besides its template: the hashed files, and whether BOS and EOS are added unasked."""

    files: tuple[LoadedFile, ...]
    adds_bos: bool
    adds_eos: bool


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Hash what is there. Raises ``ManifestError`` when the folder holds no tokenizer or a flag is not a boolean."""
    files = [hash_bytes_file(folder / name) for name in TOKENIZER_BYTE_FILES if is_there(folder / name)]
    config: Any = {}
    for name, omitted in TOKENIZER_JSON_FILES.items():
        if not is_there(folder / name):
            continue
        content = (folder / name).read_bytes()
        files.append(hash_json_bytes(name, content, omitted))
        if name == TOKENIZER_CONFIG_FILE:
            config = _parse(content)
    if not files:
        raise ManifestError(f"The folder {folder} holds no tokenizer file")
    return TokenizerFiles(
        files=tuple(sorted(files, key=lambda file: file.path)),
        adds_bos=_flag(config, "add_bos_token"),
        adds_eos=_flag(config, "add_eos_token"),
    )


def _parse(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except JSON_ERRORS as error:
        raise ManifestError(f"{TOKENIZER_CONFIG_FILE} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ManifestError(f"{TOKENIZER_CONFIG_FILE} holds a {type(value).__name__}, not an object")
    return value


def _flag(config: dict[str, Any], name: str) -> bool:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ManifestError(f"{TOKENIZER_CONFIG_FILE}: {name} is {value!r}, not true or false")
    return bool(value)
