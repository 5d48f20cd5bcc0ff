"""The NetworkPolicy of a service as a real API server keeps it. What it keeps out is not tested: the network of the test cluster enforces
none."""

from typing import Any

import pytest

from pratique_contract import constants
from pratique_operator import kinds
from tests.integration.operator.changes import eventually
from tests.integration.operator.conftest import NETWORK
from tests.integration.operator.world import World

pytestmark = pytest.mark.integration


def stored(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.children()["NetworkPolicy/svc"]
    return found


def test_management_port_is_open_to_the_operator_alone_and_all_others_to_everybody(world: World) -> None:
    world.create()
    world.wait_ready()
    policy = stored(world)
    spec = policy["spec"]
    assert spec == {
        "podSelector": {"matchLabels": {constants.LABEL_SERVICE: "svc"}},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": [{"protocol": "TCP", "port": 8000}]},
            {
                "ports": [
                    {"protocol": "TCP", "port": 1, "endPort": 7999},
                    {"protocol": "TCP", "port": 8002, "endPort": 65535},
                    {"protocol": "UDP", "port": 1, "endPort": 65535},
                ]
            },
            {"from": list(NETWORK.management_from), "ports": [{"protocol": "TCP", "port": 8001}]},
        ],
    }
    # It selects what the pods really carry, and names the ports they really open.
    (pod,) = world.list(kinds.POD)
    assert pod["metadata"]["labels"].items() >= spec["podSelector"]["matchLabels"].items()
    opened = {port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert opened == {constants.API_PORT, constants.MANAGEMENT_PORT} == {8000, 8001}
    (owner,) = policy["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (world.service()["metadata"]["uid"], True)


def test_policy_stays_while_the_spec_cannot_be_served(world: World) -> None:
    world.create()
    world.wait_ready()
    world.create(chatTemplate={"configMapKeyRef": {"name": "none", "key": "k"}})
    world.wait_reason("InvalidSpec")
    before = stored(world)["metadata"]["uid"]
    world.cluster._call("DELETE", kinds.NETWORK_POLICY.path(world.namespace, "svc"))
    eventually(lambda: world.list(kinds.NETWORK_POLICY), what="the policy is back")
    assert stored(world)["metadata"]["uid"] != before


def test_policy_of_somebody_else_is_told_and_never_overwritten(world: World) -> None:
    spec = {"podSelector": {}, "policyTypes": ["Ingress"]}
    head = {"apiVersion": kinds.NETWORK_POLICY.api_version, "kind": kinds.NETWORK_POLICY.kind}
    world.apply({**head, "metadata": {"name": "svc"}, "spec": spec})
    world.create()
    assert "NetworkPolicy svc exists and does not belong" in world.wait_reason("InvalidSpec")["message"]
    found = world.cluster.get(kinds.NETWORK_POLICY, world.namespace, "svc")
    assert found is not None
    assert found["spec"] == spec
    world.cluster._call("DELETE", kinds.NETWORK_POLICY.path(world.namespace, "svc"))
    world.wait_ready()
