"""Special ids, stop rules and generation defaults, read once and used by everybody.

In goes the model folder's ``generation_config.json`` (``config.json`` where it is silent) and the loaded tokenizer; out comes the
manifest's ``specialTokens`` part. The server takes its stop ids and defaults from that part and from nowhere else, so what is
fingerprinted is what acts.
"""

import json
from pathlib import Path
from typing import Any, Final

from pratique_contract.canonical import JSON_ERRORS
from pratique_contract.manifest import SpecialTokensPart
from pratique_server.artifacts.errors import ManifestError
from pratique_server.artifacts.files import is_there
from pratique_server.release.generation_defaults import check_defaults

GENERATION_CONFIG_FILE: Final = "generation_config.json"
MODEL_CONFIG_FILE: Final = "config.json"
CONFIG_BYTES_MAX: Final = 4 * 1024 * 1024

_ID_FIELDS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
# Written by whoever saved the file; nothing reads them back.
_NOISE_FIELDS: Final = ("transformers_version", "_from_model_config")


def read_special_tokens(model_dir: Path, *, tokenizer: Any, context_limit: int) -> SpecialTokensPart:
    """Build the part from the folder and the tokenizer that were loaded. Raises ``ManifestError`` for a file that is not
    what its name says."""
    generation = _read_object(model_dir / GENERATION_CONFIG_FILE)
    config = _read_object(model_dir / MODEL_CONFIG_FILE)
    # generation_config.json wins; config.json speaks only where there is no other voice.
    declared = {field: generation.get(field, config.get(field)) for field in _ID_FIELDS}
    eos_ids = set(_ids(declared["eos_token_id"], "eos_token_id"))
    tokenizer_eos = {tokenizer.eos_id} if tokenizer.eos_id is not None else set()
    return SpecialTokensPart(
        bos_id=tokenizer.bos_id if tokenizer.bos_id is not None else _one_id(declared["bos_token_id"], "bos_token_id"),
        eos_ids=tuple(eos_ids or tokenizer_eos),
        pad_id=tokenizer.pad_id if tokenizer.pad_id is not None else _one_id(declared["pad_token_id"], "pad_token_id"),
        unk_id=tokenizer.unk_id,
        stop_ids=tuple(eos_ids | tokenizer_eos),
        adds_bos=tokenizer.adds_bos,
        adds_eos=tokenizer.adds_eos,
        tokens=dict(tokenizer.special_tokens),
        generation_defaults=_generation_defaults(generation),
        context_limit=context_limit,
    )


def _generation_defaults(generation: dict[str, Any]) -> dict[str, Any]:
    """Everything the file says besides ids; null says nothing."""
    skipped = (*_ID_FIELDS, *_NOISE_FIELDS)
    defaults = {name: value for name, value in generation.items() if name not in skipped and value is not None}
    check_defaults(defaults)
    return defaults


def _read_object(path: Path) -> dict[str, Any]:
    if not is_there(path):
        return {}
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise ManifestError(f"{path} is larger than {CONFIG_BYTES_MAX} bytes")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror or error}") from error
    except JSON_ERRORS as error:
        raise ManifestError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ManifestError(f"{path} holds a {type(value).__name__}, not an object")
    return value


def _ids(value: Any, field: str) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in values):
        raise ManifestError(f"{field} is {value!r}, not a token id or a list of them")
    return tuple(values)


def _one_id(value: Any, field: str) -> int | None:
    ids = _ids(value, field)
    return ids[0] if ids else None
