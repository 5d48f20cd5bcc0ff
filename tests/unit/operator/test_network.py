"""Who may reach the pods: the setting, and the policy made of it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pratique_contract import constants
from pratique_operator import labels
from pratique_operator.config import ConfigError, read_config
from pratique_operator.desired import children as build
from pratique_operator.network import NetworkAccess, parse_access
from tests.unit.operator.worlds import make_owner

Manifest = dict[str, Any]

OPERATOR: Manifest = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "pratique-system"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "pratique-operator"}},
}
PROMETHEUS: Manifest = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
CLIENTS: Manifest = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}


def policy(*management: Manifest, api: tuple[Manifest, ...] = ()) -> Manifest:
    return dict(build.build_network_policy(make_owner(), NetworkAccess(management, api))["spec"])


def peers_of(spec: Manifest, port: int, protocol: str = "TCP") -> list[Manifest] | str | None:
    """Whom a policy lets reach a port, as the API defines it: a rule without peers lets in everybody; None: nobody."""
    found: list[Manifest] = []
    for rule in spec["ingress"]:
        matches = [
            p for p in rule["ports"] if p["protocol"] == protocol and p["port"] <= port <= p.get("endPort", p["port"])
        ]
        if matches and not rule.get("from"):
            return "everybody"
        found += rule["from"] if matches else []
    return found or None


def test_management_port_is_open_to_the_named_and_to_nobody_else() -> None:
    assert peers_of(policy(OPERATOR, PROMETHEUS), constants.MANAGEMENT_PORT) == [OPERATOR, PROMETHEUS]
    # An empty list of peers would be everybody.
    assert peers_of(policy(), constants.MANAGEMENT_PORT) is None


def test_api_port_is_open_to_everybody_or_to_the_named() -> None:
    assert peers_of(policy(OPERATOR), constants.API_PORT) == "everybody"
    assert peers_of(policy(OPERATOR, api=(CLIENTS,)), constants.API_PORT) == [CLIENTS]


@given(st.integers(1, 65535), st.booleans(), st.sampled_from(["TCP", "UDP"]))
def test_every_other_port_stays_as_it_is_without_a_policy(port: int, limited: bool, protocol: str) -> None:
    """A mesh that takes traffic on a port of its own would lose all of it."""
    ours = protocol == "TCP" and port in (constants.API_PORT, constants.MANAGEMENT_PORT)
    spec = policy(OPERATOR, api=(CLIENTS,) if limited else ())
    assert ours or peers_of(spec, port, protocol) == "everybody"


def test_plug_in_without_ranges_still_opens_the_api_port_and_not_the_management_port() -> None:
    """It takes the first port of each range."""
    bare = json.loads(json.dumps(policy(OPERATOR)))
    for rule in bare["ingress"]:
        for port in rule["ports"]:
            port.pop("endPort", None)
    assert peers_of(bare, constants.API_PORT) == "everybody"
    assert peers_of(bare, constants.MANAGEMENT_PORT) == [OPERATOR]


def test_policy_covers_the_pods_of_every_revision_and_leaves_what_goes_out() -> None:
    built = build.build_network_policy(make_owner(), NetworkAccess((OPERATOR,)))
    assert built["metadata"]["name"] == "svc"
    assert built["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert built["spec"]["podSelector"] == {"matchLabels": labels.service_selector("svc")}
    assert built["spec"]["policyTypes"] == ["Ingress"]


def test_setting_is_read() -> None:
    text = json.dumps({"managementFrom": [OPERATOR, PROMETHEUS], "apiFrom": [CLIENTS]})
    assert read_config({"PRATIQUE_NETWORK_POLICY": text}).network == NetworkAccess((OPERATOR, PROMETHEUS), (CLIENTS,))
    assert parse_access('{"managementFrom": [], "apiFrom": null}') == NetworkAccess()
    assert read_config({}).network is read_config({"PRATIQUE_NETWORK_POLICY": " "}).network is None


def with_selector(**selector: Any) -> Manifest:
    return {"podSelector": selector}


WRONG: dict[str, Any] = {
    "no object": [],
    "an unknown list": {"metricsFrom": []},
    "no list": {"managementFrom": {}},
    "a peer that is nobody": {"managementFrom": [{}]},
    "a peer that is no object": {"managementFrom": ["monitoring"]},
    "an unknown peer": {"managementFrom": [{"namespace": "monitoring"}]},
    "addresses and pods": {"managementFrom": [{**CLIENTS, **PROMETHEUS}]},
    "no addresses": {"apiFrom": [{"ipBlock": {"cidr": "monitoring"}}]},
    "no network": {"apiFrom": [{"ipBlock": {"cidr": "10.0.0.1/8"}}]},
    "an address without a length": {"apiFrom": [{"ipBlock": {"cidr": "10.0.0.1"}}]},
    "a netmask": {"apiFrom": [{"ipBlock": {"cidr": "10.0.0.0/255.0.0.0"}}]},
    "a zone": {"apiFrom": [{"ipBlock": {"cidr": "fe80::%eth0/64"}}]},
    "an exception without a length": {"apiFrom": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.2.3"]}}]},
    "a form that is going away": {"apiFrom": [{"ipBlock": {"cidr": "2001:DB8::/32"}}]},
    "an address of the other family": {"apiFrom": [{"ipBlock": {"cidr": "::ffff:10.0.0.0/120"}}]},
    "an exception outside": {"apiFrom": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}]},
    "an exception of the whole": {"apiFrom": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}}]},
    "an exception of the other family": {"apiFrom": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["fd00::/64"]}}]},
    "labels beside matchLabels": {"managementFrom": [with_selector(app="prometheus")]},
    "a label that is none": {"managementFrom": [with_selector(matchLabels={"a b": "c"})]},
    "a label's prefix that is no domain": {"managementFrom": [with_selector(matchLabels={"a..b/c": "d"})]},
    "a label's prefix that is too long": {
        "managementFrom": [with_selector(matchLabels={f"{'.'.join(['a' * 63] * 4)}/c": "d"})]
    },
    "an operator that is no text": {"managementFrom": [with_selector(matchExpressions=[{"key": "a", "operator": []}])]},
    "a value that is none": {"managementFrom": [with_selector(matchLabels={"a": 1})]},
    "a value that is too long": {"managementFrom": [with_selector(matchLabels={"a": "b" * 64})]},
    "no operator": {"managementFrom": [with_selector(matchExpressions=[{"key": "a"}])]},
    "values that are missing": {"managementFrom": [with_selector(matchExpressions=[{"key": "a", "operator": "In"}])]},
    "too many": {"managementFrom": [PROMETHEUS] * 65},
}


@pytest.mark.parametrize("what", WRONG)
def test_setting_that_no_api_server_takes_keeps_the_operator_from_starting(what: str) -> None:
    """Found out at a service, it would stand in every service's status and stop every rollout."""
    with pytest.raises(ConfigError, match="PRATIQUE_NETWORK_POLICY"):
        read_config({"PRATIQUE_NETWORK_POLICY": json.dumps(WRONG[what])})


def test_setting_that_is_no_json_is_named() -> None:
    with pytest.raises(ConfigError, match="PRATIQUE_NETWORK_POLICY"):
        read_config({"PRATIQUE_NETWORK_POLICY": "true"})
    with pytest.raises(ConfigError, match="PRATIQUE_NETWORK_POLICY"):
        read_config({"PRATIQUE_NETWORK_POLICY": "{"})
    with pytest.raises(ConfigError, match="PRATIQUE_NETWORK_POLICY"):
        read_config({"PRATIQUE_NETWORK_POLICY": "[" * 100_000})


def test_every_form_of_a_peer_that_the_api_server_takes_is_taken() -> None:
    blocks = ("0.0.0.0/0", "10.0.0.1/32", "::/0", "2001:db8::/32", "fe80::1/128")
    labels_ = ("app", "app.kubernetes.io/name", f"{'.'.join(['a' * 62] * 4)}/c")
    peers = [{"ipBlock": {"cidr": block}} for block in blocks]
    peers += [with_selector(matchLabels={label: ""}) for label in labels_]
    assert parse_access(json.dumps({"apiFrom": peers})) == NetworkAccess((), tuple(peers))


def test_what_the_api_server_leaves_out_of_a_peer_is_left_out_at_once() -> None:
    """Else each pass would find it missing, and write the policy of every service again."""
    text = json.dumps(
        {
            "managementFrom": [
                {"podSelector": {"matchLabels": {}}, "namespaceSelector": {"matchExpressions": []}},
                with_selector(matchExpressions=[{"key": "a", "operator": "Exists", "values": []}]),
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": []}},
            ]
        }
    )
    assert parse_access(text) == NetworkAccess(
        (
            {"podSelector": {}, "namespaceSelector": {}},
            with_selector(matchExpressions=[{"key": "a", "operator": "Exists"}]),
            {"ipBlock": {"cidr": "10.0.0.0/8"}},
        )
    )
