"""The chart's rights, compared with the calls the operator really makes: nothing missing (it logs in with these rights in every
test), nothing to spare."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pratique_contract import constants
from pratique_operator import kinds
from pratique_operator.pods import stuck
from tests.integration.operator.changes import eventually
from tests.integration.operator.world import World

pytestmark = pytest.mark.integration


def test_chart_grants_exactly_what_the_operator_calls(
    own_world: World,
    chart_rules: list[dict[str, Any]],
    recording: set[tuple[str, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live_through_everything(own_world, monkeypatch)
    # kopf lists and watches what the handlers are registered for.
    watched = {
        (verb, kind.group, kind.plural)
        for kind in (kinds.INFERENCE_SERVICE, *kinds.WATCHED)
        for verb in ("list", "watch")
    }
    granted = {
        (verb, group, resource)
        for rule in chart_rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == recording | watched


def live_through_everything(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deploy with references, a candidate that does not start, its removal and an update; at last an operator without policies."""
    monkeypatch.setattr(stuck, "STUCK_AFTER", timedelta(0))
    for kind, field in (("ConfigMap", "data"), ("Secret", "stringData")):
        world.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": "ref"}, field: {"k": "v"}})
    referring: dict[str, Any] = {
        "chatTemplate": {"configMapKeyRef": {"name": "ref", "key": "k"}},
        "template": {"spec": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "ref", "key": "k"}}}]}},
    }
    world.create(**referring)
    world.wait_ready()
    stable = world.target()
    world.kubelet.outcomes[world.namespace] = lambda pod: (
        "ready" if pod["metadata"]["labels"][constants.LABEL_REVISION] == stable else "pulling"
    )
    world.create(engine={"image": "localhost/none:2"}, **referring)
    broken = world.target()
    eventually(lambda: len(world.list(kinds.POD)) == 2, what="the candidate's pod")
    world.wait_reason("Loading")
    world.create(**referring)
    eventually(lambda: broken not in world.deployed(), what="the candidate is gone")
    world.kubelet.outcomes[world.namespace] = lambda _: "ready"
    world.create(engine={"image": "localhost/none:3"}, **referring)
    world.wait_ready()
    world.operator.stop()
    world.operator.config = replace(world.operator.config, network=None)
    world.operator.start()
    eventually(lambda: not world.list(kinds.NETWORK_POLICY), what="the policy is gone")
    world.wait_ready()
