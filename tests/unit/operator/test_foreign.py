"""What takes a service's traffic and was not made for it is not counted among its pods, and is told."""

from dataclasses import replace
from typing import Any

import pytest

from pratique_contract import Reason, Verdict, VerdictResult, constants
from pratique_contract.verdict import Reverification
from pratique_operator import labels
from pratique_operator.observe import Snapshot, rollout_state
from pratique_operator.pods.foreign import find_foreign, is_foreign, is_foreign_slice
from pratique_operator.rollout.planner import plan_rollout
from tests.unit.operator.test_status import OLD, REV, conditions, message, serving, status_of
from tests.unit.operator.worlds import NOW, make_deployment, make_pod, make_snapshot, ready_pod

OWN = f"svc-{REV}-5d4f"
APPROVED = "sha256:" + "a" * 64
CONTROLLER = "endpointslice-controller.k8s.io"


def pod(
    *owners: dict[str, Any], ready: str = "True", port: str = constants.API_PORT_NAME, **metadata: Any
) -> dict[str, Any]:
    own = {**labels.revision_labels("svc", REV), "pod-template-hash": "5d4f"}
    return {
        "metadata": {"name": "copy", "labels": own, "ownerReferences": list(owners), **metadata},
        "spec": {"containers": [{"name": "server", "ports": [{"name": port, "containerPort": 8000}]}]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def owner(kind: str = "ReplicaSet", name: str = OWN, controller: bool = True) -> dict[str, Any]:
    return {"kind": kind, "name": name, "controller": controller, "uid": "u"}


def part(*addresses: str, manager: str | None = CONTROLLER, ready: bool | None = True) -> dict[str, Any]:
    own = {} if manager is None else {"endpointslice.kubernetes.io/managed-by": manager}
    endpoints = [{"addresses": [address], "conditions": {"ready": ready}} for address in addresses]
    return {"metadata": {"name": "slice", "labels": own}, "endpoints": endpoints}


def test_a_pod_of_the_revisions_own_replica_set_is_not_foreign() -> None:
    assert not is_foreign(pod(owner()))
    assert find_foreign([pod(owner())], [part("10.0.0.1")]) == ()


@pytest.mark.parametrize(
    "made",
    [
        pod(),
        pod(owner(controller=False)),
        pod(owner(kind="Job")),
        pod(owner(name="svc-other-5d4f")),
        # Another service whose name begins alike.
        pod(owner(name=f"svc-{REV}-5d4f-5d4f")),
    ],
)
def test_a_pod_with_our_labels_that_the_deployment_did_not_make_is_foreign(made: dict[str, Any]) -> None:
    assert is_foreign(made)
    (sentence,) = find_foreign([made], [])
    assert f"pod copy takes traffic under the labels of revision {REV}" in sentence


@pytest.mark.parametrize(
    "made",
    [
        pod(ready="False"),
        pod(port="debug"),
        pod(deletionTimestamp="2026-01-01T00:00:00Z"),
        pod(labels=labels.service_labels("svc")),
    ],
)
def test_a_foreign_pod_that_takes_no_traffic_is_not_worth_a_word(made: dict[str, Any]) -> None:
    assert is_foreign(made)
    assert find_foreign([made], []) == ()


def test_a_slice_written_by_hand_is_told_with_where_it_leads() -> None:
    for manager in (None, "somebody"):
        (sentence,) = find_foreign([], [part("10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.4", manager=manager)])
        assert sentence.startswith(
            "EndpointSlice slice was written by hand and sends the service's traffic to 10.9.0.1, "
        )
        assert "10.9.0.3 and 1 more;" in sentence
    # A missing "ready" is taken as ready, by the nodes too.
    assert is_foreign_slice(part("10.9.0.1", manager=None, ready=None))
    assert not is_foreign_slice(part("10.9.0.1", manager=None, ready=False))
    assert not is_foreign_slice(part(manager=None))


def test_foreign_traffic_is_no_verified_traffic() -> None:
    snapshot = replace(serving(), foreign=("pod copy takes traffic",))
    found = conditions(snapshot)
    assert found["FingerprintVerified"] == ("False", "UnverifiedEndpoint")
    assert found["Degraded"] == ("True", "UnverifiedEndpoint")
    # Its own pods serve as before.
    assert found["Ready"][0] == found["Available"][0] == "True"
    assert message(snapshot, "FingerprintVerified") == "pod copy takes traffic"


@pytest.mark.parametrize(("observed", "verified"), [("sha256:" + "a" * 64, 1), (None, 1), ("sha256:" + "b" * 64, 0)])
def test_a_pod_that_passed_as_another_release_than_the_approved_one_is_not_verified(
    observed: str | None, verified: int
) -> None:
    """Its revision's ConfigMap was exchanged while it started, and put back since."""
    verdict = Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="proved", fingerprint=observed)
    approved = "sha256:" + "a" * 64
    snapshot = serving(make_pod(REV, ready=True, running=True, verdict=verdict, release=approved))
    assert status_of(snapshot)["serving"]["verifiedReplicas"] == verified
    if not verified:
        assert conditions(snapshot)["FingerprintVerified"] == ("False", "RecordMissing")
        assert "passed as release bbbbbbbbbbbb, its revision is release aaaaaaaaaaaa" in message(snapshot, "Degraded")


def candidate(**facts: Any) -> Snapshot:
    """An old revision serves; the target's only pod is ready."""
    deployments = (make_deployment(OLD, served=True), make_deployment(REV))
    pods = (ready_pod(OLD, "old"), make_pod(REV, ready=True, running=True, **facts))
    return make_snapshot(entry=OLD, deployments=deployments, pods=pods, endpoints={OLD: 1})


def test_a_candidate_takes_over_only_with_pods_against_which_nothing_is_known() -> None:
    passed = Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="proved", fingerprint=APPROVED)
    drift = Reverification(
        result=VerdictResult.FAIL, reason=Reason.OUTPUT_MISMATCH, message="other token", failures=3, at=NOW
    )
    entries = {
        "unknown": candidate(),
        "passed": candidate(verdict=passed, release=APPROVED),
        "as another release": candidate(verdict=passed, release="sha256:" + "b" * 64),
        "lies since": candidate(verdict=passed.model_copy(update={"reverification": drift})),
    }
    chosen = {name: plan_rollout(rollout_state(snapshot), NOW).entry for name, snapshot in entries.items()}
    assert chosen == {"unknown": REV, "passed": REV, "as another release": OLD, "lies since": OLD}


def test_what_is_found_against_pods_that_serve_takes_no_traffic_from_them() -> None:
    verdict = Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="proved", fingerprint=APPROVED)
    snapshot = serving(make_pod(REV, ready=True, running=True, verdict=verdict, release="sha256:" + "b" * 64))
    assert plan_rollout(rollout_state(snapshot), NOW).phase == "Complete"
