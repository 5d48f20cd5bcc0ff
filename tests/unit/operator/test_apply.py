"""When a write is skipped: the observed object already holds the intent, or somebody else made it first."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pratique_contract import Reason, Verdict, VerdictResult
from pratique_operator import names
from pratique_operator.api.schema import quantity_value
from pratique_operator.apply import _keep_offers, apply_plan
from pratique_operator.cluster import Cluster
from pratique_operator.desired.children import owner_reference
from pratique_operator.drift import contains
from pratique_operator.errors import ChildConflictError, ConflictError
from pratique_operator.kinds import Kind
from pratique_operator.network import NetworkAccess
from pratique_operator.observe import rollout_state
from pratique_operator.release.trust import RecordAnswer
from pratique_operator.rollout.planner import plan_rollout
from tests.support.releases import make_record
from tests.unit.operator.worlds import NOW, make_deployment, make_pod, make_snapshot, make_target

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_everything_contains_itself(value: Any) -> None:
    assert contains(value, value)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3), st.text(min_size=4, max_size=6), JSON)
def test_fields_added_by_the_server_do_not_count(value: dict[str, Any], key: str, added: Any) -> None:
    assert contains({**value, key: added}, value)


@pytest.mark.parametrize(
    ("observed", "intent"),
    [
        ({}, {"a": None}),
        ({"a": 1}, {"a": 2}),
        ({"a": [1, 2]}, {"a": [1]}),
        ({"a": [1]}, {"a": [1, 2]}),
        ({"a": "x"}, {"a": {"b": 1}}),
        (None, {"a": 1}),
        ({"memory": "1Gi"}, {"memory": "2Gi"}),
        ({"a": "yes"}, {"a": "no"}),
        ({"publishNotReadyAddresses": True}, {"publishNotReadyAddresses": False}),
        ({}, {"automountServiceAccountToken": False}),
    ],
)
def test_difference_is_seen(observed: Any, intent: Any) -> None:
    assert not contains(observed, intent)


def test_plain_boolean_that_the_server_left_out_is_false() -> None:
    assert contains({}, {"publishNotReadyAddresses": False})
    assert not contains({}, {"publishNotReadyAddresses": True})


@pytest.mark.parametrize(
    ("written", "stored"), [("1000m", "1"), ("1024Mi", "1Gi"), ("0.5", "500m"), ("1e3", "1k"), ("2Gi", "2Gi")]
)
def test_quantities_compare_by_value(written: str, stored: str) -> None:
    assert contains({"cpu": stored}, {"cpu": written})


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 0.5), ("2Gi", 2**31), ("3", 3), ("1.5k", 1500), ("x", None), ("", None)]
)
def test_quantity_values(text: str, value: float | None) -> None:
    assert quantity_value(text) == value


class EmptyCluster:
    """An API server that keeps what is applied, in its order."""

    def __init__(self) -> None:
        self.applied: list[str] = []

    def get(self, kind: Kind, namespace: str, name: str) -> None:
        return None

    def apply(self, kind: Kind, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        self.applied.append(kind.kind)
        return body


def test_management_port_is_closed_before_the_first_pod_is_made() -> None:
    snapshot, cluster = make_snapshot(), EmptyCluster()
    plan = plan_rollout(rollout_state(snapshot), NOW)
    apply_plan(cast("Cluster", cluster), snapshot, plan, network=NetworkAccess(), now="2026-01-01T00:00:00Z")
    assert cluster.applied[0] == "NetworkPolicy"
    assert "Deployment" in cluster.applied


class TakenName:
    """An API server where somebody was quicker."""

    def __init__(self, existing: dict[str, Any]) -> None:
        self.existing = existing

    def create(self, kind: Any, namespace: str, body: dict[str, Any]) -> None:
        raise ConflictError(409, "exists")

    def get(self, kind: Any, namespace: str, name: str) -> dict[str, Any]:
        return self.existing


def test_record_that_another_operator_kept_first_is_left_alone_and_a_foreign_object_is_named() -> None:
    answer = RecordAnswer(200, make_record().to_json())
    verdict = Verdict(
        result=VerdictResult.PASS, reason=Reason.VERIFIED, message="ok", fingerprint=make_record().fingerprint
    )
    spec = {"release": {"policy": "TrustFirst"}}
    revision = make_target(**spec).revision
    marks = {names.ANNOTATION_DECLARED: str(make_target(**spec).declared)}
    snapshot = make_snapshot(
        spec=spec,
        deployments=(make_deployment(revision, marks=marks),),
        pods=(make_pod(revision, ready=True, running=True, verdict=verdict),),
        answer=answer,
    )
    assert snapshot.trust.offers[0].record is not None
    ours = {"metadata": {"name": "x", "ownerReferences": [owner_reference(snapshot.owner)]}}
    assert _keep_offers(cast("Cluster", TakenName(ours)), snapshot) == 0
    with pytest.raises(ChildConflictError, match="ConfigMap svc-recorded-"):
        _keep_offers(cast("Cluster", TakenName({"metadata": {"name": "x"}})), snapshot)
