"""What a pod's own object says, as the kubelet and the scheduler write it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pratique_contract import Reason, Verdict, VerdictResult, constants
from pratique_contract.reasons import DOWNLOAD_REASONS
from pratique_contract.verdict import Reverification
from pratique_operator.pods.containers import Finding
from pratique_operator.pods.facts import PodFacts, observe_pod
from tests.unit.operator.worlds import NOW


def observe(value: dict[str, Any]) -> PodFacts:
    return observe_pod(value, now=NOW)


def pod(
    *, phase: str = "Running", deleting: bool = False, fetch: dict[str, Any] | None = None, **container: Any
) -> dict[str, Any]:
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
            **({"initContainerStatuses": [{"name": "fetch", "image": "i:1", **fetch}]} if fetch is not None else {}),
        },
    }


def found(**container: Any) -> tuple[str, str] | None:
    finding = observe(pod(**container)).finding
    return None if finding is None else (finding.reason, finding.message)


def test_ready_pod_is_verified_and_nothing_waits_for_its_answer() -> None:
    facts = observe(pod(ready=True, state={"running": {}}))
    assert (facts.ready, facts.verified, facts.failure) == (True, True, None)
    assert (facts.may_answer, facts.is_urgent) == (True, False)


def test_running_pod_that_is_not_ready_is_asked_urgently() -> None:
    facts = observe(pod(state={"running": {}}))
    assert (facts.revision, facts.address, facts.is_urgent, facts.verified) == ("rev", "10.0.0.1", True, False)


def reverified(failures: int, result: VerdictResult = VerdictResult.FAIL) -> PodFacts:
    seen = Reverification(
        result=result, reason=Reason.OUTPUT_MISMATCH, message="case 1: other token", failures=failures, at=NOW
    )
    verdict = Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="proved", reverification=seen)
    return PodFacts(name="p", revision="r", ready=True, running=True, verdict=verdict)


def test_ready_pod_that_fails_its_re_verification_often_enough_is_a_failure_that_serves() -> None:
    for passing in (reverified(2), reverified(0, VerdictResult.PASS)):
        assert (passing.verified, passing.failure) == (True, None)
    failing = reverified(3)
    sentence = "3 re-verifications in a row failed: case 1: other token"
    assert (failing.ready, failing.verified) == (True, False)
    assert failing.failure == Finding(Reason.OUTPUT_MISMATCH, sentence)
    assert replace(failing, failures_max=4).failure is None


def test_terminating_pod_is_neither_ready_nor_failed() -> None:
    facts = observe(pod(ready=True, deleting=True, state={"running": {}}))
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
    log = "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'torch'\n"
    last = {"terminated": {"reason": "Error", "exitCode": 1, "message": log}}
    assert found(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=last) == (
        "CrashLooping",
        "the server exited with code 1: ModuleNotFoundError: No module named 'torch'",
    )


@pytest.mark.parametrize(
    ("state", "restarts"),
    [
        ({"terminated": True}, 0),
        ({"running": {}}, 1),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, 1),
        ({"running": {}}, 5),
    ],
)
def test_refused_pod_that_the_kubelet_restarts_keeps_the_gates_reason(state: dict[str, Any], restarts: int) -> None:
    """After startup.timeoutSeconds a refused pod is restarted; its reason alternated with CrashLooping."""
    ended = {"terminated": {"reason": "Error", "exitCode": 137, "message": "ModelMismatch: config.json: other bytes\n"}}
    now = {"state": ended} if "terminated" in state else {"state": state, "lastState": ended}
    assert found(**now, restartCount=restarts) == ("ModelMismatch", "config.json: other bytes")


def test_gates_old_reason_is_over_once_a_restarted_pod_has_proved_itself() -> None:
    last = {"terminated": {"reason": "Error", "exitCode": 137, "message": "ProbeTimeout: 60 s were not enough"}}
    assert found(state={"running": {}}, lastState=last, restartCount=1, started=True) is None
    facts = observe(pod(state={"running": {}}, lastState=last, restartCount=1))
    passed = Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="proved")
    assert PodFacts(name="p", revision="r", finding=facts.finding, verdict=passed).failure is None


def test_a_word_that_is_no_reason_of_the_gate_is_not_taken_for_one() -> None:
    last = {"terminated": {"reason": "Error", "exitCode": 1, "message": "Loading: shard 3"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert found(state=waiting, lastState=last) == ("CrashLooping", "the server exited with code 1: Loading: shard 3")


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
    facts = observe(value)
    assert facts.finding is not None
    assert (facts.finding.reason, facts.finding.message) == (reason, message)
    assert facts.waits_for_capacity == (reason is Reason.WAITING_FOR_CAPACITY)


def test_evicted_pod_says_so() -> None:
    value = pod(phase="Failed")
    value["status"] |= {"reason": "Evicted", "message": "low on memory"}
    finding = observe(value).finding
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
        return observe(value).creating

    assert creating(state={"waiting": {"reason": "ContainerCreating"}})
    assert not creating(state={"waiting": {"reason": "ImagePullBackOff"}})
    assert not observe(pod(phase="Pending")).creating


def fetching(**fetch: Any) -> PodFacts:
    return observe(pod(phase="Pending", fetch=fetch, state={"waiting": {"reason": "PodInitializing"}}))


def fetch_trouble(**fetch: Any) -> tuple[str, str] | None:
    finding = fetching(**fetch).finding
    return None if finding is None else (finding.reason, finding.message)


def ended(message: str = "", code: int = 1, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "message": message, "finishedAt": "2026-01-02T03:00:00Z", **more}}


def test_pod_that_fetches_is_asked_how_far_it_is_and_is_not_stuck() -> None:
    facts = fetching(state={"running": {"startedAt": "2026-01-02T03:00:00Z"}})
    assert (facts.fetching, facts.may_answer, facts.creating, facts.running) == (True, True, False, False)
    verdict = Verdict(result=VerdictResult.PENDING, reason=Reason.DOWNLOADING, message="1 of 2 GB")
    told = PodFacts(name="p", revision="r", fetching=True, verdict=verdict)
    assert (told.download, told.failure) == ("1 of 2 GB", None)


def test_fetched_pod_is_being_created_since_its_fetch_ended() -> None:
    value = pod(phase="Pending", fetch={"state": ended(code=0)}, state={"waiting": {"reason": "PodInitializing"}})
    value["status"]["conditions"].append({"type": "PodScheduled", "status": "True"})
    facts = observe(value)
    assert (facts.creating, facts.fetching, facts.finding) == (True, False, None)
    assert facts.creating_since == facts.fetched_at == NOW - timedelta(minutes=4, seconds=5)


@pytest.mark.parametrize("reason", sorted(DOWNLOAD_REASONS))
def test_failed_fetch_tells_its_own_reason_also_while_the_kubelet_waits(reason: str) -> None:
    last = ended(f"{reason}: the hub said so\n")
    assert fetch_trouble(state=last) == (reason, "the hub said so")
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert fetch_trouble(state=waiting, lastState=last) == (reason, "the hub said so")


def test_failed_fetch_that_says_nothing_known_is_told_by_the_end_of_its_log() -> None:
    log = "Traceback:\n x\nOSError: Network is unreachable\n"
    expected = "the fetching container exited with code 1: OSError: Network is unreachable"
    assert fetch_trouble(state=ended(log)) == ("DownloadFailed", expected)
    assert fetch_trouble(state=ended("ModelMismatch: x"))[0] == "DownloadFailed"  # type: ignore[index]


def test_fetch_out_of_memory_is_named() -> None:
    """kserve#5326, kserve#5162: the fetcher of a large model was killed and nobody was told."""
    found = fetch_trouble(
        state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended(code=137, reason="OOMKilled")
    )
    assert found == ("OutOfMemory", "the fetching container was killed because it used more memory than its limit")


@pytest.mark.parametrize(
    ("lasted", "seconds", "stands"),
    [
        (2, 5, True),
        (2, 59, True),
        (2, 60, False),
        (150, 149, True),
        (150, 150, False),
        (9000, 599, True),
        (9000, 600, False),
    ],
)
def test_reason_stands_until_the_next_attempt_has_got_further_than_the_one_that_failed(
    lasted: int, seconds: int, stands: bool
) -> None:
    """What is refused at once, or stalls after the same while each time, would otherwise come and go with every attempt."""
    started = (NOW - timedelta(seconds=seconds)).isoformat()
    began = (datetime(2026, 1, 2, 3, 0, tzinfo=UTC) - timedelta(seconds=lasted)).isoformat()
    last = ended("DownloadNotFound: no x", startedAt=began)
    found = fetch_trouble(state={"running": {"startedAt": started}}, lastState=last)
    assert found == (("DownloadNotFound", "no x (the next attempt runs)") if stands else None)


def test_image_that_cannot_be_pulled_for_the_fetch_is_named() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    assert fetch_trouble(state=waiting) == ("ImagePullFailed", "i:1: no such image")


def test_later_attempt_that_succeeds_clears_the_reason() -> None:
    assert fetch_trouble(state=ended(code=0), lastState=ended("DownloadStalled: x")) is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('Usage of EmptyDir volume "cache" exceeds the limit "1Gi". ', "DiskFull"),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ", "DiskFull"),
        ("The node was low on resource: ephemeral-storage.", "DiskFull"),
        ("The node was low on resource: memory.", "OutOfMemory"),
        ("The node had condition: [PIDPressure].", "CrashLooping"),
    ],
)
def test_what_a_pod_was_evicted_for_is_named(message: str, reason: str) -> None:
    """kserve#4852."""
    value = pod(phase="Failed", fetch={"state": {"running": {}}})
    value["status"] |= {"reason": "Evicted", "message": message}
    facts = observe(value)
    assert facts.finding is not None
    assert (facts.finding.reason, facts.ended, facts.fetching) == (reason, True, False)


def test_claim_without_a_volume_is_noticed_whether_the_scheduler_says_so_or_is_silent() -> None:
    def waits(conditions: list[dict[str, Any]], claim: str | None = "models") -> bool:
        value = pod(phase="Pending")
        value["status"]["conditions"] = conditions
        value["spec"] = {"volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": claim}}] if claim else []}
        return observe(value).claims_unbound

    unbound = {
        "type": "PodScheduled",
        "status": "False",
        "message": "pod has unbound immediate PersistentVolumeClaims.",
    }
    no_room = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: 1 Insufficient cpu."}
    assert waits([unbound])
    assert waits([])
    assert not waits([], claim=None)
    assert not waits([no_room])
    assert not waits([{"type": "PodScheduled", "status": "True"}])
