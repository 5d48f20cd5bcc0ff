"""What a pod's own object says, as the kubelet and the scheduler write it."""

from typing import Any

import pytest

from pratique_contract import Reason, Verdict, VerdictResult, constants
from pratique_operator.pods import PodFacts, observe_pod


def pod(*, phase: str = "Running", deleting: bool = False, **container: Any) -> dict[str, Any]:
    ready = "True" if container.get("ready") else "False"
    return {
        "metadata": {
            "name": "p",
            "uid": "u",
            "labels": {constants.LABEL_REVISION: "rev"},
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}),
        },
        "status": {
            "phase": phase,
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{"name": "server", "image": "i:1", **container}],
        },
    }


def found(**container: Any) -> tuple[str, str] | None:
    finding = observe_pod(pod(**container)).finding
    return None if finding is None else (finding.reason, finding.message)


def test_ready_pod_is_verified_and_not_asked() -> None:
    facts = observe_pod(pod(ready=True, state={"running": {}}))
    assert (facts.ready, facts.verified, facts.may_answer, facts.failure) == (True, True, False, None)


def test_running_pod_that_is_not_ready_may_be_asked() -> None:
    facts = observe_pod(pod(state={"running": {}}))
    assert (facts.revision, facts.address, facts.may_answer, facts.verified) == ("rev", "10.0.0.1", True, False)


def test_terminating_pod_is_neither_ready_nor_failed() -> None:
    facts = observe_pod(pod(ready=True, deleting=True, state={"running": {}}))
    assert (facts.ready, facts.terminating, facts.failure) == (False, True, None)


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"])
def test_image_trouble(reason: str) -> None:
    """gpustack#5869, ome PR #616."""
    assert found(state={"waiting": {"reason": reason, "message": "no such image"}}) == (
        "ImagePullFailed",
        "i:1: no such image",
    )


def test_out_of_memory_is_named_even_while_it_restarts() -> None:
    """kserve#5326."""
    last = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    expected = ("OutOfMemory", "the container was killed because it used more memory than its limit")
    assert found(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=last) == expected
    assert found(state={"running": {}}, lastState=last) == expected


def test_crash_loop_repeats_the_last_words_of_the_process() -> None:
    last = {"terminated": {"reason": "Error", "exitCode": 1, "message": "ModelMismatch: config.json\n is not JSON"}}
    assert found(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=last) == (
        "CrashLooping",
        "the server exited with code 1: ModelMismatch: config.json is not JSON",
    )


def test_reason_does_not_flap_while_a_crashing_container_runs_for_a_moment() -> None:
    last = {"terminated": {"reason": "Error", "exitCode": 1, "message": "no such folder"}}
    waiting = found(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=last, restartCount=2)
    assert found(state={"running": {}}, lastState=last, restartCount=2) == waiting


def test_first_restart_is_not_a_crash_loop_yet() -> None:
    last = {"terminated": {"reason": "Error", "exitCode": 1}}
    assert found(state={"running": {}}, lastState=last) is None


def test_container_that_cannot_be_created() -> None:
    state = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "s" not found'}}
    assert found(state=state) == ("CrashLooping", 'the container cannot start: secret "s" not found')


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", Reason.WAITING_FOR_CAPACITY),
        ('0/1 nodes are available: persistentvolumeclaim "models" not found.', Reason.INVALID_SPEC),
    ],
)
def test_unscheduled_pod(message: str, reason: Reason) -> None:
    value = pod(phase="Pending")
    value["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": message}]
    facts = observe_pod(value)
    assert facts.finding is not None
    assert (facts.finding.reason, facts.finding.message) == (reason, message)
    assert facts.waits_for_capacity == (reason is Reason.WAITING_FOR_CAPACITY)


def test_evicted_pod_says_so() -> None:
    value = pod(phase="Failed")
    value["status"] |= {"reason": "Evicted", "message": "low on memory"}
    finding = observe_pod(value).finding
    assert finding is not None
    assert finding.message == "Evicted: low on memory"


def test_own_verdict_comes_before_what_the_kubelet_says() -> None:
    verdict = Verdict(result=VerdictResult.FAIL, reason=Reason.TEMPLATE_MISMATCH, message="one character")
    facts = PodFacts(name="p", revision="r", running=True, verdict=verdict)
    assert facts.failure is not None
    assert facts.failure.reason == "TemplateMismatch"


def test_long_messages_are_cut() -> None:
    finding = found(state={"waiting": {"reason": "ErrImagePull", "message": "x" * 5000}})
    assert finding is not None
    assert len(finding[1]) == 400


def test_pod_on_a_node_whose_container_has_not_started_is_being_created() -> None:
    def creating(**container: Any) -> bool:
        value = pod(phase="Pending", **container)
        value["status"]["conditions"].append({"type": "PodScheduled", "status": "True"})
        return observe_pod(value).creating

    assert creating(state={"waiting": {"reason": "ContainerCreating"}})
    assert not creating(state={"waiting": {"reason": "ImagePullBackOff"}})
    assert not observe_pod(pod(phase="Pending")).creating
