"""Status tables: an observed world in, conditions out."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pratique_contract import Reason, Verdict, VerdictResult, constants
from pratique_contract.verdict import Reverification
from pratique_operator import names
from pratique_operator.errors import InvalidSpecError, RecordError
from pratique_operator.observe import Snapshot, rollout_state
from pratique_operator.pods.facts import Finding, PodFacts
from pratique_operator.release.references import Reference, References
from pratique_operator.reporting.dropped import LAST_APPLIED
from pratique_operator.reporting.status import compute_status, merge_patch
from pratique_operator.rollout.planner import plan_rollout
from tests.support.releases import make_record
from tests.unit.operator.worlds import (
    NOW,
    failing_pod,
    make_deployment,
    make_pod,
    make_snapshot,
    make_target,
    ready_pod,
)

REV = make_target().revision
OLD = "0ld0ld0ld0"
RECORD = make_record()


def status_of(snapshot: Snapshot, **more: Any) -> dict[str, Any]:
    plan = plan_rollout(rollout_state(snapshot), NOW)
    return compute_status(snapshot, plan, now=NOW, **more).value


def conditions(snapshot: Snapshot, **more: Any) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status_of(snapshot, **more)["conditions"]}


def message(snapshot: Snapshot, kind: str = "Ready") -> str:
    return next(str(c["message"]) for c in status_of(snapshot)["conditions"] if c["type"] == kind)


def serving(*pods: PodFacts, endpoints: int = 1) -> Snapshot:
    """The target serves."""
    deployment = make_deployment(REV, replicas=1, served=True)
    return make_snapshot(
        entry=REV,
        deployments=(deployment,),
        pods=pods or (ready_pod(REV),),
        endpoints={REV: endpoints} if endpoints else {},
    )


def updating(*candidates: PodFacts) -> Snapshot:
    """An older revision serves, the target is on its way."""
    deployments = (make_deployment(OLD, served=True), make_deployment(REV))
    pods = (ready_pod(OLD, "old"), *candidates)
    return make_snapshot(entry=OLD, deployments=deployments, pods=pods, endpoints={OLD: 1})


def record_map(revision: str) -> dict[str, Any]:
    data = {constants.RECORD_FILE: RECORD.to_json()}
    return {"metadata": {"name": names.revision_child("svc", revision), "annotations": {}}, "data": data}


def test_a_source_without_a_revision_of_its_own_is_at_what_its_files_are_recorded_as() -> None:
    """A mounted folder, or a prefix that is listed anew at every start."""
    recorded = RECORD.manifest.model.revision
    release = {"fingerprint": RECORD.fingerprint, "recordRef": {"name": "rel"}}
    found = References({Reference("ConfigMap", "rel"): {"data": {constants.RECORD_FILE: RECORD.to_json()}}})
    for uri in ("file:///models/x", "pvc://models/x", "s3://bucket/x"):
        spec = {"model": {"uri": uri}, "release": release}
        snapshot = make_snapshot(
            spec=spec,
            references=found,
            entry=OLD,
            deployments=(make_deployment(OLD, served=True),),
            config_maps=(record_map(OLD),),
            pods=(ready_pod(OLD),),
            endpoints={OLD: 1},
        )
        status = status_of(snapshot)
        assert status["candidate"]["modelRevision"] == recorded, uri
        # The revision that is replaced was made of a spec that is gone: of it there is what its own pods read.
        assert status["serving"]["modelRevision"] == recorded
    assert "modelRevision" not in status_of(serving())["serving"]


def test_a_source_that_is_pinned_is_at_what_it_is_pinned_by() -> None:
    digest = "sha256:" + "d" * 64
    snapshot = make_snapshot(
        spec={"model": {"uri": f"oci://registry/models/x@{digest}"}},
        entry=OLD,
        deployments=(make_deployment(OLD, served=True, marks={constants.ANNOTATION_MODEL_REVISION: "c" * 40}),),
        config_maps=(record_map(OLD),),
        pods=(ready_pod(OLD),),
        endpoints={OLD: 1},
    )
    status = status_of(snapshot)
    assert [status[role]["modelRevision"] for role in ("serving", "candidate")] == ["c" * 40, digest]


def test_gate_that_broke_says_nothing_about_the_release() -> None:
    broken = updating(failing_pod(REV, Reason.GATE_FAILED, "The gate itself broke"))
    found = conditions(broken)
    assert found["Ready"] == ("False", "GateFailed")
    assert found["Degraded"] == ("True", "GateFailed")
    assert found["FingerprintVerified"] == ("Unknown", "GateFailed")
    assert plan_rollout(rollout_state(broken), NOW).entry == OLD  # and passes nothing
    (verdict,) = status_of(broken)["verdicts"]
    assert (verdict["result"], verdict["reason"]) == ("Fail", "GateFailed")


def test_all_conditions_are_there_from_the_first_pass() -> None:
    """kserve#4454: status empty until ready."""
    assert conditions(make_snapshot()) == {
        "Ready": ("False", "Loading"),
        "Available": ("False", "Loading"),
        "Progressing": ("True", "Loading"),
        "FingerprintVerified": ("Unknown", "Loading"),
        "ReviewPassed": ("Unknown", "NothingToCompare"),
        "Degraded": ("False", "Reconciled"),
    }


def test_serving_service_is_ready() -> None:
    assert conditions(serving()) == {
        "Ready": ("True", "Reconciled"),
        "Available": ("True", "Reconciled"),
        "Progressing": ("False", "Reconciled"),
        "FingerprintVerified": ("True", "Verified"),
        "ReviewPassed": ("Unknown", "NothingToCompare"),
        "Degraded": ("False", "Reconciled"),
    }


def test_a_revision_that_serves_is_not_said_to_be_starting() -> None:
    old = make_deployment(OLD, replicas=1, served=True)
    snapshot = make_snapshot(
        entry=REV,
        deployments=(old, make_deployment(REV)),
        pods=(ready_pod(OLD, "old"), ready_pod(REV)),
        endpoints={REV: 1},
    )
    assert conditions(snapshot)["Progressing"][0] == "True"
    assert message(snapshot, "Progressing").startswith(f"revision {REV} serves, ")
    assert message(snapshot, "Available").endswith(" answers with 1 pod")


def test_ready_pods_without_endpoints_are_not_ready() -> None:
    """dynamo#13622: Ready before anybody could route to it."""
    assert conditions(serving(endpoints=0))["Ready"][0] == "False"


def test_unknown_endpoints_are_unknown_availability() -> None:
    snapshot = replace(serving(), endpoints=None)
    found = conditions(snapshot)
    assert (found["Available"][0], found["Ready"][0]) == ("Unknown", "False")


def test_ready_of_an_older_revision_is_not_ready_of_the_current_spec() -> None:
    """kserve#1859, #4626: Ready during a progressing rollout."""
    found = conditions(updating(make_pod(REV, running=True)))
    assert (found["Ready"][0], found["Available"][0], found["Progressing"][0]) == ("False", "True", "True")
    status = status_of(updating())
    assert (status["serving"]["revision"], status["serving"]["weight"]) == (OLD, 100)
    assert (status["candidate"]["revision"], status["candidate"]["weight"]) == (REV, 0)


@pytest.mark.parametrize("reason", [Reason.MODEL_MISMATCH, Reason.TOKENIZER_MISMATCH, Reason.OUTPUT_MISMATCH])
def test_failing_verdict_is_the_reason_everywhere(reason: Reason) -> None:
    snapshot = updating(failing_pod(REV, reason, "this differs", "bad"))
    found = conditions(snapshot)
    assert found["Ready"] == ("False", reason)
    assert found["FingerprintVerified"] == ("False", reason)
    assert found["Degraded"] == ("True", reason)
    assert found["Available"] == ("True", "Reconciled")
    assert message(snapshot) == "pod bad: this differs"
    assert message(snapshot, "Degraded").endswith(f"revision {OLD} goes on serving")
    assert status_of(snapshot)["verdicts"] == [
        {
            "pod": "bad",
            "revision": REV,
            "result": "Fail",
            "reason": reason,
            "message": "this differs",
            "at": "2026-01-02T03:04:05Z",
        }
    ]


def test_verdict_says_more_than_a_crash_and_parts_come_in_the_gates_order() -> None:
    crash = make_pod(REV, "a", finding=Finding(Reason.CRASH_LOOPING, "exit 1"))
    output = failing_pod(REV, Reason.OUTPUT_MISMATCH, "other token", "b")
    model = failing_pod(REV, Reason.MODEL_MISMATCH, "other weights", "c")
    assert conditions(updating(crash, output, model))["Ready"] == ("False", "ModelMismatch")
    assert conditions(updating(crash, output))["Ready"] == ("False", "OutputMismatch")
    assert conditions(updating(crash))["Ready"] == ("False", "CrashLooping")


def test_verified_pod_that_is_not_ready_yet_is_not_said_to_be_silent() -> None:
    verdict = Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="proved", checked_at=NOW)
    snapshot = updating(make_pod(REV, "new", running=True, verdict=verdict))
    assert conditions(snapshot)["Ready"] == ("False", "Verifying")
    assert message(snapshot).startswith("pod new proved its release")


def test_silent_pod_is_unknown_and_not_failed() -> None:
    snapshot = updating(make_pod(REV, running=True))
    assert conditions(snapshot)["Degraded"][0] == "False"
    assert conditions(snapshot)["FingerprintVerified"][0] == "Unknown"
    assert status_of(snapshot)["verdicts"] == []


def test_waiting_for_capacity_is_progress_and_not_failure() -> None:
    pod = make_pod(REV, finding=Finding(Reason.WAITING_FOR_CAPACITY, "0/3 nodes are available"))
    found = conditions(updating(pod))
    assert found["Ready"] == ("False", "WaitingForCapacity")
    assert found["Progressing"] == ("True", "WaitingForCapacity")
    assert found["Degraded"][0] == "False"


def test_quota_is_capacity_and_another_refusal_is_a_problem() -> None:
    def refused(text: str) -> Snapshot:
        condition = {"type": "ReplicaFailure", "status": "True", "message": text}
        return make_snapshot(entry=REV, deployments=(make_deployment(REV, conditions=[condition]),), endpoints={})

    assert conditions(refused("pods x is forbidden: exceeded quota: q"))["Ready"] == ("False", "WaitingForCapacity")
    forbidden = refused('pods x is forbidden: violates PodSecurity "restricted"')
    assert conditions(forbidden)["Degraded"] == ("True", "InvalidSpec")
    assert "violates PodSecurity" in message(forbidden)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InvalidSpecError("spec.model.uri", "is wrong"), "InvalidSpec"),
        (RecordError("spec.release.recordRef: there is no ConfigMap r"), "RecordMissing"),
    ],
)
def test_blocked_spec_says_why_while_the_old_one_serves(error: InvalidSpecError | RecordError, reason: str) -> None:
    snapshot = make_snapshot(
        entry=OLD,
        deployments=(make_deployment(OLD, served=True),),
        pods=(ready_pod(OLD),),
        endpoints={OLD: 1},
        blocked=error,
    )
    found = conditions(snapshot)
    assert found["Ready"] == ("False", reason)
    assert found["Degraded"] == ("True", reason)
    assert found["Available"] == ("True", "Reconciled")
    assert message(snapshot) == str(error)


def test_deadline_turns_progress_into_failure() -> None:
    snapshot = updating(make_pod(REV, running=True))
    early = status_of(snapshot)
    assert early["rollout"] == {
        "phase": "Progressing",
        "target": REV,
        "startedAt": "2026-01-02T03:04:05Z",
        "message": "",
    }
    snapshot.owner["status"] = early
    plan = plan_rollout(rollout_state(snapshot), NOW)
    late = compute_status(snapshot, plan, now=NOW + timedelta(seconds=2400)).value
    by_type = {c["type"]: (c["status"], c["reason"]) for c in late["conditions"]}
    assert by_type["Progressing"] == ("False", "ProgressDeadlineExceeded")
    assert by_type["Degraded"] == ("True", "ProgressDeadlineExceeded")
    assert late["rollout"]["phase"] == "Failed"


def test_revision_that_has_served_is_not_on_trial_again() -> None:
    snapshot = serving(make_pod(REV, running=True))
    snapshot.owner["status"] = {"rollout": {"target": REV, "startedAt": "2025-01-01T00:00:00Z"}}
    assert conditions(snapshot)["Degraded"][0] == "False"


def test_zero_replicas_have_a_reason_of_their_own() -> None:
    snapshot = make_snapshot(
        spec={"replicas": 0}, entry=REV, deployments=(make_deployment(REV, replicas=0, served=True),), endpoints={}
    )
    found = conditions(snapshot)
    assert found["Ready"] == ("False", "ScaledToZero")
    assert found["Progressing"] == ("False", "Reconciled")


def test_transition_time_moves_only_with_the_status() -> None:
    snapshot = updating(make_pod(REV, running=True))
    snapshot.owner["status"] = status_of(snapshot)
    later = NOW + timedelta(minutes=1)
    failing = replace(snapshot, pods=(ready_pod(OLD, "old"), failing_pod(REV, Reason.MODEL_MISMATCH, "x")))
    plan = plan_rollout(rollout_state(failing), later)
    times = {c["type"]: c["lastTransitionTime"] for c in compute_status(failing, plan, now=later).value["conditions"]}
    assert times["Ready"] == "2026-01-02T03:04:05Z"
    assert times["Degraded"] == "2026-01-02T03:05:05Z"


def test_same_world_gives_the_same_status_later() -> None:
    """What is written once must not change by itself, or the operator would write for ever."""
    for snapshot in (serving(), updating(failing_pod(REV, Reason.MODEL_MISMATCH, "x")), make_snapshot()):
        before = status_of(snapshot)
        snapshot.owner["status"] = before
        plan = plan_rollout(rollout_state(snapshot), NOW)
        assert compute_status(snapshot, plan, now=NOW + timedelta(minutes=5)).value == before


def test_at_most_ten_failing_pods_are_listed() -> None:
    pods = [failing_pod(REV, Reason.MODEL_MISMATCH, "x", f"p{n:02}") for n in range(15)]
    assert [v["pod"] for v in status_of(updating(*pods))["verdicts"]] == [f"p{n:02}" for n in range(10)]


def test_dropped_fields_degrade_a_service_that_serves_and_say_less_than_a_problem() -> None:
    snapshot = serving()
    applied = {"spec": {"model": {"uri": "file:///models/x"}, "scaling": {}}}
    snapshot.owner["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(applied)}
    assert conditions(snapshot)["Ready"] == ("True", "Reconciled")
    assert conditions(snapshot)["Degraded"] == ("True", "UnknownFields")
    assert "spec.scaling" in message(snapshot, "Degraded")
    refused = Finding(Reason.INVALID_SPEC, "Service svc exists")
    assert conditions(snapshot, refused=refused)["Degraded"] == ("True", "InvalidSpec")


def test_evicted_pod_is_history_once_its_revision_is_complete_without_it() -> None:
    """Kubernetes keeps pods that ended for a long time; a service that serves stayed degraded as long."""
    evicted = make_pod(REV, "evicted", ended=True, finding=Finding(Reason.DISK_FULL, "Evicted"))
    assert conditions(serving(ready_pod(REV), evicted))["Degraded"] == ("False", "Reconciled")
    status = status_of(serving(ready_pod(REV), evicted))
    assert (status["verdicts"], status["replicas"], status["serving"]["replicas"]) == ([], 1, 1)
    assert status["rollout"]["phase"] == "Complete"
    assert conditions(serving(make_pod(REV, running=True), evicted, endpoints=0))["Ready"] == ("False", "DiskFull")
    shut_down = make_pod(
        REV, "shut-down", ended=True, finding=Finding(Reason.CRASH_LOOPING, "Terminated: node shutdown")
    )
    assert conditions(serving(shut_down, endpoints=0))["Ready"] == ("False", "CrashLooping")
    assert conditions(serving(make_pod(REV, running=True), shut_down, endpoints=0))["Ready"] == ("False", "Loading")
    old = make_pod(OLD, "evicted", ended=True, finding=Finding(Reason.CRASH_LOOPING, "x"))
    assert status_of(serving(ready_pod(REV), old))["verdicts"] == []


def test_refused_write_is_told() -> None:
    refused = Finding(Reason.INVALID_SPEC, "Service svc exists")
    assert conditions(serving(), refused=refused)["Degraded"] == ("True", "InvalidSpec")


def test_merge_patch_clears_what_is_gone() -> None:
    before = {"a": 1, "b": {"c": 1, "d": 2}, "e": [1]}
    after = {"b": {"c": 1}, "e": [2], "f": {}}
    assert merge_patch(before, after) == {"a": None, "b": {"d": None}, "e": [2], "f": {}}
    assert merge_patch(after, after) == {}


@pytest.mark.parametrize(("failures", "told"), [(2, False), (3, True)])
def test_serving_pod_that_begins_to_answer_otherwise_is_told_and_goes_on(failures: int, told: bool) -> None:
    """vllm#36960: healthy after the engine or its device went wrong."""
    seen = Reverification(
        result=VerdictResult.FAIL, reason=Reason.OUTPUT_MISMATCH, message="token 3 differs", failures=failures, at=NOW
    )
    verdict = Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="proved", reverification=seen)
    snapshot = serving(make_pod(REV, "p", ready=True, running=True, audited=True, verdict=verdict))
    found = conditions(snapshot)
    assert found["Ready"][0] == "True"
    assert (found["FingerprintVerified"] == ("False", "OutputMismatch")) is told
    assert (found["Degraded"] == ("True", "OutputMismatch")) is told
    if told:
        sentence = "pod p: 3 re-verifications in a row failed: token 3 differs; it goes on serving"
        assert message(snapshot, "Degraded") == sentence
        assert [verdict["pod"] for verdict in status_of(snapshot)["verdicts"]] == ["p"]
