"""Copies of a model folder with exactly one change, and the few wrong artefacts that every suite uses.

A copy shares every unchanged file by hard link. ``FAULTS`` names for each fault the reason the gate must give. The full table of
faults is ``tests/mutation/faults``.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pratique_contract.reasons import Reason

Mutation = Callable[[Path], None]


def copy_of(model: Path, target: Path, mutation: Mutation | None = None) -> Path:
    """Make ``target`` a copy of ``model`` and apply one mutation to it; replaces what was there."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in sorted(model.iterdir()):
        _link_or_copy(file, target / file.name)
    if mutation is not None:
        mutation(target)
    target.chmod(0o755)
    return target


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def replace(path: Path, content: bytes) -> None:
    """Write through a new file: the old one is a hard link into the original."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(0o644)


def edit_json(path: Path, edit: Callable[[Any], object]) -> None:
    """Change a JSON file's value in place."""
    value = json.loads(path.read_text(encoding="utf-8"))
    edit(value)
    replace(path, json.dumps(value, indent=2, ensure_ascii=False).encode())


def flip_weight_byte(folder: Path) -> None:
    """Flip the lowest mantissa bit of one weight: the smallest change that loads without complaint."""
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    header_size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_size])
    name = next(name for name in sorted(header) if "mlp" in name)
    offset = 8 + header_size + header[name]["data_offsets"][0]
    content[offset] ^= 1
    replace(path, bytes(content))


def remove_last_merge(folder: Path) -> None:
    def edit(value: Any) -> None:
        value["model"]["merges"].pop()

    edit_json(folder / "tokenizer.json", edit)


def swap_two_tokens(folder: Path) -> None:
    """Another revision of the tokenizer: same size, two ordinary tokens exchanged."""

    def edit(value: Any) -> None:
        vocab = value["model"]["vocab"]
        first, second = sorted(token for token, index in vocab.items() if index > 300)[:2]
        vocab[first], vocab[second] = vocab[second], vocab[first]

    edit_json(folder / "tokenizer.json", edit)


def change_template_character(folder: Path) -> None:
    """One letter of the default system prompt, wherever the folder keeps its template."""
    file = folder / "chat_template.jinja"
    if file.exists():
        text = file.read_text(encoding="utf-8")
        replace(file, text.replace("helpful", "helpfuI", 1).encode())
        return

    def edit(value: Any) -> None:
        value["chat_template"] = value["chat_template"].replace("helpful", "helpfuI", 1)

    edit_json(folder / "tokenizer_config.json", edit)


def change_eos_id(folder: Path) -> None:
    def edit(value: Any) -> None:
        value["eos_token_id"] = 0

    edit_json(folder / "generation_config.json", edit)


def change_default_temperature(folder: Path) -> None:
    def edit(value: Any) -> None:
        value["temperature"] = 0.7

    edit_json(folder / "generation_config.json", edit)


def change_rope_theta(folder: Path) -> None:
    def edit(value: Any) -> None:
        value["rope_parameters"]["rope_theta"] *= 2

    edit_json(folder / "config.json", edit)


FAULTS: dict[str, tuple[Mutation, Reason]] = {
    "weight-byte": (flip_weight_byte, Reason.MODEL_MISMATCH),
    "rope-theta": (change_rope_theta, Reason.MODEL_MISMATCH),
    "tokenizer-merge": (remove_last_merge, Reason.TOKENIZER_MISMATCH),
    "tokenizer-revision": (swap_two_tokens, Reason.TOKENIZER_MISMATCH),
    "template-character": (change_template_character, Reason.TEMPLATE_MISMATCH),
    "eos-id": (change_eos_id, Reason.SPECIAL_TOKENS_MISMATCH),
    "default-temperature": (change_default_temperature, Reason.SPECIAL_TOKENS_MISMATCH),
}


def reformat_json(folder: Path) -> None:
    """Other white space and key order in every JSON file: the same values."""
    for path in sorted(folder.glob("*.json")):
        value = json.loads(path.read_text(encoding="utf-8"))
        shuffled = dict(reversed(value.items())) if isinstance(value, dict) else value
        replace(path, json.dumps(shuffled, indent=7, ensure_ascii=True).encode())


def add_readme(folder: Path) -> None:
    """A file nothing loads."""
    (folder / "README.md").write_text("Not read by the server.\n", encoding="utf-8")


HARMLESS: dict[str, Mutation] = {"reformatted-json": reformat_json, "readme": add_readme}
