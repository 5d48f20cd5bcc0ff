"""Fields the API server dropped: what kubectl's own copy of the manifest still shows."""

import json
from typing import Any

import pytest

from pratique_operator.reporting.dropped import FIELDS_MAX, LAST_APPLIED, find_dropped
from tests.unit.operator.worlds import make_owner


def applied(manifest: Any) -> dict[str, Any]:
    owner = make_owner()
    owner["metadata"]["annotations"] = {LAST_APPLIED: manifest if isinstance(manifest, str) else json.dumps(manifest)}
    return owner


def test_every_dropped_field_is_named_by_its_path() -> None:
    spec = {
        "model": {"uri": "pvc://m", "adaptors": [], "adapters": [{"name": "a", "uri": "pvc://m/a", "scale": 2}]},
        "scaling": {"class": "HPA"},
        "template": {"spec": {"env": [{"name": "A", "value": "1", "valeu": "2"}]}},
    }
    assert sorted(find_dropped(applied({"spec": spec, "specs": {}}))) == [
        "spec.model.adapters[0].scale",
        "spec.model.adaptors",
        "spec.scaling",
        "spec.template.spec.env[0].valeu",
        "specs",
    ]


def test_manifest_that_is_stored_whole_has_none_whatever_its_values() -> None:
    spec = {"model": {"uri": "pvc://m"}, "replicas": -3, "template": {"spec": {"affinity": {"any": {"thing": 1}}}}}
    assert find_dropped(applied({"apiVersion": "x", "kind": "y", "metadata": {}, "spec": spec})) == ()


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"spec": 3}', '{"spec": null}'])
def test_copy_that_cannot_be_read_says_nothing(text: str) -> None:
    assert find_dropped(applied(text)) == ()
    assert find_dropped(make_owner()) == ()


def test_list_is_bounded() -> None:
    spec = {f"x{n}": 1 for n in range(50)}
    assert len(find_dropped(applied({"spec": {"model": {"uri": "pvc://m"}, **spec}}))) == FIELDS_MAX
