"""Parsing a stored spec: the first wrong field is named in a sentence, defaults are filled in and never written back."""

from typing import Any

import pytest

from pratique_operator.api.types import parse_spec
from pratique_operator.errors import InvalidSpecError

MODEL = {"model": {"uri": "pvc://m"}}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({}, "spec.model: field required"),
        (None, "spec: "),
        ({**MODEL, "scaling": {}}, "spec.scaling: extra inputs are not permitted"),
        (
            {**MODEL, "engine": {"maxModelLen": 0}},
            "spec.engine.maxModelLen: input should be greater than or equal to 1",
        ),
        (
            {**MODEL, "template": {"spec": {"env": [{"name": "A", "value": "1"}, {"name": "-"}]}}},
            "spec.template.spec.env[1].name: ",
        ),
        ({"replicas": "x"}, "(and 1 more)"),
        ({**MODEL, "engine": {"kvCache": {"memory": "0"}}}, "spec.engine.kvCache.memory: "),
        ({**MODEL, "engine": {"kvCache": {"memory": "1e400"}}}, "spec.engine.kvCache.memory: "),
        ({**MODEL, "download": {"cache": {"emptyDir": {"sizeLimit": "10m"}}}}, "a size is a number of bytes"),
    ],
)
def test_wrong_field_is_named(spec: Any, sentence: str) -> None:
    with pytest.raises(InvalidSpecError) as raised:
        parse_spec(spec)
    assert sentence in str(raised.value)


def test_defaults_are_filled_in() -> None:
    spec = parse_spec(MODEL)
    assert (spec.replicas, spec.rollout.strategy, spec.release.policy) == (1, "Rolling", "Enforce")
    assert spec.progress_deadline_seconds == 2400
    assert parse_spec({**MODEL, "rollout": {"progressDeadlineSeconds": 5}}).progress_deadline_seconds == 5


def test_numbers_are_quantities_too() -> None:
    spec = parse_spec({**MODEL, "template": {"spec": {"resources": {"requests": {"cpu": 2}}}}})
    assert spec.template is not None
    assert spec.template.spec is not None
    assert spec.template.spec.resources is not None
    assert spec.template.spec.resources.requests == {"cpu": "2"}
