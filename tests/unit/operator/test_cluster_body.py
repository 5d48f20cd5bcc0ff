"""Request bodies: the API server reads a server-side apply as YAML, whatever JSON allows."""

import json

import yaml
from hypothesis import given
from hypothesis import strategies as st

from pratique_operator.cluster import encode_body


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_a_body_is_the_same_value_to_a_json_and_a_yaml_reader(text: str) -> None:
    encoded = encode_body({"data": {"record.json": text}})
    assert json.loads(encoded) == {"data": {"record.json": text}}
    assert yaml.safe_load(encoded) == {"data": {"record.json": text}}


def test_an_emoji_is_not_escaped_into_surrogates() -> None:
    assert encode_body({"text": "🚢 é \x7f"}) == '{"text": "🚢 \\u00e9 \\u007f"}'.encode()
