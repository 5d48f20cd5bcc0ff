"""Each fact of a model folder moves the digest of exactly one manifest part."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from pratique_server.artifacts.files import (
    CONFIG_OMITTED,
    TOKENIZER_CONFIG_OMITTED,
    hash_bytes_file,
    hash_json_bytes,
    hash_json_file,
)


def digest(value: Any, omitted: tuple[str, ...] = ()) -> str:
    return hash_json_bytes("x.json", json.dumps(value).encode(), omitted).sha256


def test_bytes_are_hashed_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "merges.txt"
    path.write_bytes(b"a b\n" * 3)
    entry = hash_bytes_file(path)
    assert (entry.path, entry.size, entry.form) == ("merges.txt", 12, "bytes")
    assert entry.sha256 == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_layout_and_key_order_of_json_carry_no_meaning(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n  "b": [1, 2],\n  "a": "é"\n}')
    entry = hash_json_file(path)
    assert (entry.form, entry.sha256) == ("json", digest({"a": "é", "b": [1, 2]}))
    assert entry.size == len('{"a":"é","b":[1,2]}'.encode())


def test_list_order_and_value_types_do_carry_meaning() -> None:
    assert len({digest({"a": value}) for value in ([1, 2], [2, 1], [1.0, 2], "1", 1, True, None)}) == 7


@pytest.mark.parametrize("field", CONFIG_OMITTED)
def test_a_field_another_part_owns_moves_nothing(field: str) -> None:
    base = {"hidden_size": 64}
    assert digest(base | {field: 5}, CONFIG_OMITTED) == digest(base, CONFIG_OMITTED)
    assert digest({"hidden_size": 65}, CONFIG_OMITTED) != digest(base, CONFIG_OMITTED)


def test_the_template_is_not_part_of_the_tokenizer() -> None:
    one, two = ({"chat_template": text, "model_max_length": 5} for text in ("x", "y"))
    assert digest(one, TOKENIZER_CONFIG_OMITTED) == digest(two, TOKENIZER_CONFIG_OMITTED)


@pytest.mark.parametrize("content", [b'{"a": 1, "a": 2}', b"[1]", b"{", b"\xff", b'{"a": {"b": 1, "b": 2}}'])
def test_what_parsers_may_read_differently_is_hashed_as_bytes(content: bytes) -> None:
    entry = hash_json_bytes("x.json", content, ("a",))
    assert (entry.form, entry.size, entry.omitted) == ("bytes", len(content), [])
    assert entry.sha256 == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_a_lone_surrogate_does_not_stop_the_hash() -> None:
    assert digest({"a": "\ud800"}) != digest({"a": "\ud801"})
