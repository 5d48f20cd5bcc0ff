"""Hash the files of a model folder the way the manifest wants them: each fact in exactly one part.

A JSON file states facts of several parts (``config.json`` names the end-of-sequence id), and its layout carries
no meaning. So it is hashed as a value: parsed, keys sorted, no white space, without the top-level fields another
part owns. A file that is not such an object (or repeats a key, which parsers read differently) is hashed as the
bytes it is.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from pratique_contract.canonical import JSON_ERRORS, digest_bytes

# config.json without what specialTokens and quantization own, and without what only names the program that wrote it.
CONFIG_SPECIAL_TOKEN_FIELDS: Final = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "max_position_embeddings",
)
CONFIG_QUANTIZATION_FIELDS: Final = ("dtype", "torch_dtype", "quantization_config")
CONFIG_NOISE_FIELDS: Final = ("transformers_version", "_name_or_path")
CONFIG_OMITTED: Final = (*CONFIG_SPECIAL_TOKEN_FIELDS, *CONFIG_QUANTIZATION_FIELDS, *CONFIG_NOISE_FIELDS)

# The tokenizer's files without the template and without the choice of special tokens.
SPECIAL_TOKEN_FIELDS: Final = ("bos_token", "eos_token", "pad_token", "unk_token")
TOKENIZER_CONFIG_OMITTED: Final = (
    "chat_template",
    *SPECIAL_TOKEN_FIELDS,
    "add_bos_token",
    "add_eos_token",
    "name_or_path",
)
SPECIAL_TOKENS_MAP_OMITTED: Final = SPECIAL_TOKEN_FIELDS

# Tokenizer files by name with the fields left out of each; other names in the folder are not the tokenizer's.
TOKENIZER_JSON_FILES: Final[dict[str, tuple[str, ...]]] = {
    "tokenizer_config.json": TOKENIZER_CONFIG_OMITTED,
    "special_tokens_map.json": SPECIAL_TOKENS_MAP_OMITTED,
    # Order matters in their lists (merges, unigram pieces) and not in their objects: another layout is the same tokenizer.
    "tokenizer.json": (),
    "vocab.json": (),
    "added_tokens.json": (),
}
TOKENIZER_BYTE_FILES: Final = ("merges.txt", "tokenizer.model")


# Formats that can run code when they are read: never fetched, never opened.
PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".pickle", ".joblib")

_CHUNK_BYTES: Final = 8 * 1024 * 1024


class LoadedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file the engine read: path relative to the model folder, the number of bytes hashed, ``sha256:`` digest, and (for
    JSON) the fields left out because another manifest part owns them. See ``FileEntry`` in the contract."""

    path: str
    size: int
    sha256: str
    form: str = "bytes"
    omitted: list[str] = []


def is_there(path: Path) -> bool:
    """A link that leads nowhere, or a folder of this name, is no absent file: taken for one, something else would be served without a
    word."""
    return path.exists() or path.is_symlink()


def hash_bytes_file(path: Path) -> LoadedFile:
    """Hash a file as it is, reading it once. ``path`` in the result is the file's name."""
    hasher, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
            size += len(chunk)
    return LoadedFile(path=path.name, size=size, sha256=f"sha256:{hasher.hexdigest()}")


def hash_bytes(name: str, content: bytes) -> LoadedFile:
    """Hash bytes the caller has read, as they are."""
    return LoadedFile(path=name, size=len(content), sha256=digest_bytes(content))


def hash_json_file(path: Path, omitted: Iterable[str] = ()) -> LoadedFile:
    """Hash a JSON file as a value, reading it once. See ``hash_json_bytes``."""
    return hash_json_bytes(path.name, path.read_bytes(), omitted)


def hash_json_bytes(name: str, content: bytes, omitted: Iterable[str] = ()) -> LoadedFile:
    """Hash bytes the caller has read (so that what is hashed is what is used) as a JSON value without ``omitted``.

    ``omitted`` in the result lists the fields the rule leaves out, present or not: whether a field another part
    owns is there must not move this part's digest. Falls back to the plain bytes when they are not one JSON
    object with distinct keys.
    """
    fields = sorted(set(omitted))
    try:
        value = json.loads(content, object_pairs_hook=_distinct_keys)
    except JSON_ERRORS:
        value = None
    if not isinstance(value, dict):
        return hash_bytes(name, content)
    kept = {key: item for key, item in value.items() if key not in fields}
    encoded = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
    return LoadedFile(path=name, size=len(encoded), sha256=digest_bytes(encoded), form="json", omitted=fields)


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object repeats a key")
    return value


def is_pickle(name: str) -> bool:
    return name.lower().endswith(PICKLE_SUFFIXES)
