"""What is sent to the API server, and what its answers become."""

import json

import yaml
from hypothesis import given
from hypothesis import strategies as st

from pratique_operator.cluster import encode_body

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(st.dictionaries(st.just("key"), TEXT))
def test_body_means_the_same_as_json_and_as_yaml(body: dict[str, str]) -> None:
    """An emoji in a chat template was "invalid Unicode character escape code" to the server's YAML parser."""
    encoded = encode_body(body)
    assert json.loads(encoded) == body
    assert yaml.safe_load(encoded) == body


def test_emoji_and_control_characters_survive() -> None:
    body = {"text": "\U0001f600 \x7f \x9b \ufeff \u2028 \\ud83d \t \n \x00"}
    assert yaml.safe_load(encode_body(body)) == json.loads(encode_body(body)) == body
