"""What is sent to the API server, and what its answers become."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client

from pratique_operator import kinds
from pratique_operator.cluster import ApiCluster, encode_body
from pratique_operator.errors import UnavailableError

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


def test_closed_connection_asks_nothing_more() -> None:
    """A pass runs in a thread, which nobody can cancel: after SIGTERM it has to end by itself, and soon."""
    nobody = client.ApiClient(client.Configuration(host="http://127.0.0.1:1"))
    cluster = ApiCluster(nobody, timeout_seconds=1)
    with pytest.raises(UnavailableError, match="did not answer GET"):
        cluster.list(kinds.POD, "ns")
    cluster.close()
    with pytest.raises(UnavailableError, match="is stopping"):
        cluster.list(kinds.POD, "ns")
