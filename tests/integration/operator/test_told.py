"""What pods, their kubelet and the scheduler say becomes conditions, verdicts and Events a person can act on."""

from datetime import UTC, datetime, timedelta

import pytest

from pratique_contract import Reason, Verdict, VerdictResult, constants
from pratique_contract.verdict import Reverification
from pratique_operator import kinds
from pratique_operator.pods import stuck
from tests.integration.operator.changes import eventually
from tests.integration.operator.kubelet import Outcome, timestamp
from tests.integration.operator.world import World

pytestmark = pytest.mark.integration


HUB = {"uri": "hf://owner/name", "revision": "a" * 40}


SOME_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def downloading(message: str) -> Verdict:
    return Verdict(result=VerdictResult.PENDING, reason=Reason.DOWNLOADING, message=message)


def fail(reason: Reason, message: str) -> Verdict:
    return Verdict(result=VerdictResult.FAIL, reason=reason, message=message)


def test_status_is_written_before_anything_is_ready(world: World) -> None:
    """kserve#4454: an empty status until ready tells nobody what is going on."""
    world.kubelet.outcomes[world.namespace] = lambda _: "pulling"
    world.create()
    assert world.wait_reason("Loading")["status"] == "False"
    assert world.condition("Available")["status"] == "False"
    assert world.condition("Progressing")["status"] == "True"


@pytest.mark.req("R127")
def test_wrong_candidate_leaves_the_stable_serving_and_says_which_part(world: World) -> None:
    """LLMKube#1767: a green status over the wrong model."""
    world.create()
    world.wait_ready()
    stable = world.target()
    world.kubelet.outcomes[world.namespace] = lambda pod: (
        "ready" if pod["metadata"]["labels"][constants.LABEL_REVISION] == stable else "running"
    )
    world.create(tokenizer={"uri": "file:///models/other"})
    wrong = fail(Reason.TOKENIZER_MISMATCH, "tokenizer.files[tokenizer.json]: other bytes")
    world.operator.verdicts[world.target()] = wrong
    ready = world.wait_reason("TokenizerMismatch")
    assert ready["status"] == "False"
    assert "tokenizer.files[tokenizer.json]: other bytes" in ready["message"]
    assert world.condition("FingerprintVerified")["status"] == "False"
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "TokenizerMismatch")
    assert f"revision {stable} goes on serving" in degraded["message"]
    assert world.condition("Available")["status"] == "True"
    assert world.entry() == stable
    (verdict,) = world.status()["verdicts"]
    assert (verdict["result"], verdict["reason"], verdict["revision"]) == ("Fail", "TokenizerMismatch", world.target())


def test_failed_re_verification_of_a_serving_pod_is_told_and_stops_nothing(quick_world: World) -> None:
    """kserve#6259: green for ever after the accelerator broke."""
    world = quick_world
    world.create()
    world.wait_ready()
    seen = Reverification(
        result=VerdictResult.FAIL,
        reason=Reason.OUTPUT_MISMATCH,
        message="case 1: other token",
        failures=3,
        at=SOME_TIME,
    )
    passed = Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="proved", reverification=seen)
    world.operator.verdicts["*"] = passed
    degraded = world.wait_reason("OutputMismatch", kind="Degraded")
    assert "3 re-verifications in a row failed: case 1: other token; it goes on serving" in degraded["message"]
    assert world.condition("FingerprintVerified")["status"] == "False"
    assert (world.condition("Ready")["status"], world.condition("Available")["status"]) == ("True", "True")
    world.operator.verdicts["*"] = passed.model_copy(update={"reverification": None})
    world.wait_reason("Reconciled", kind="Degraded")


def test_pods_without_room_wait_for_capacity_and_are_not_a_failure(world: World) -> None:
    """kaito PR #2203: what the scheduler says must reach the user."""
    world.create(template={"spec": {"nodeSelector": {"pratique.test/node": "nowhere"}}})
    ready = world.wait_reason("WaitingForCapacity")
    assert "nodes are available" in ready["message"]
    assert world.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize(("outcome", "reason"), [("pull-failed", "ImagePullFailed"), ("crashing", "CrashLooping")])
def test_container_failures_are_conditions_and_one_event(own_world: World, outcome: str, reason: str) -> None:
    """gpustack#5869, kserve#1859: ImagePullBackOff hidden, Ready=True over a crash loop."""
    world = own_world
    world.kubelet.outcomes[world.namespace] = lambda _: outcome  # type: ignore[assignment,return-value]
    world.create(replicas=3)
    assert world.wait_reason(reason)["status"] == "False"
    eventually(lambda: len(world.status()["verdicts"]) == 3, what="every failing pod is listed")

    def told() -> list[str]:
        return [event["reason"] for event in world.events()]

    eventually(lambda: reason in told(), what="an event")
    world.operator.stop()
    world.operator.start()
    world.create(replicas=2)
    eventually(lambda: world.status().get("observedGeneration") == 2, what="the change is seen")
    assert told().count(reason) == 1


def test_download_is_told_from_its_first_byte_to_its_failure_and_its_end(quick_world: World) -> None:
    """kaito#344: a pod that downloads, or fails to, looked like one that is being created."""
    world = quick_world
    outcome: list[Outcome] = ["fetching"]
    world.kubelet.outcomes[world.namespace] = lambda _: outcome[0]
    world.operator.verdicts["*"] = downloading("1.0 of 2.0 GB (50 %), 80 MB/s")
    world.create(model=HUB)
    eventually(lambda: "1.0 of 2.0 GB" in world.wait_reason("Downloading")["message"], what="the fetcher's words")
    assert world.condition("Degraded")["status"] == "False"
    before = world.service()["metadata"]["resourceVersion"]
    for percent in range(60, 66):
        world.operator.verdicts["*"] = downloading(f"{percent} %")
        world.passes(1)
    # Six moves, each of them looked at, and not one write: only every progress_seconds (10) would there be one.
    assert world.service()["metadata"]["resourceVersion"] == before
    outcome[0] = "fetch-failed"
    ready = world.wait_reason("DownloadUnauthorized")
    assert "401 from hub.example for owner/name" in ready["message"]
    assert world.condition("Degraded")["status"] == "True"
    (verdict,) = world.status()["verdicts"]
    assert verdict["reason"] == "DownloadUnauthorized"
    assert world.status()["downloads"] == []
    outcome[0] = "fetch-again"
    eventually(lambda: world.status().get("downloads"), what="the next attempt is seen")
    assert world.condition()["reason"] == "DownloadUnauthorized"
    outcome[0] = "ready"
    world.wait_ready()
    assert world.status()["downloads"] == []
    # Events follow the status they tell of.
    eventually(lambda: len(world.events()) > 1, what="both events")
    assert sorted(event["reason"] for event in world.events()) == ["DownloadUnauthorized", "Promoted"]


def test_pod_that_cannot_mount_its_model_says_what_the_kubelet_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kaito#344: a wrong folder in the spec looked like a pod that is still being created."""
    monkeypatch.setattr(stuck, "STUCK_AFTER", timedelta(seconds=1))
    monkeypatch.setattr(stuck, "MOUNT_FAILED_AFTER", timedelta(seconds=4))
    world.kubelet.outcomes[world.namespace] = lambda _: "pulling"
    world.create()
    (pod,) = eventually(lambda: world.list(kinds.POD), what="the pod")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "mount", "namespace": world.namespace},
        "involvedObject": {
            "kind": "Pod",
            "name": pod["metadata"]["name"],
            "namespace": world.namespace,
            "uid": pod["metadata"]["uid"],
        },
        "type": "Warning",
        "reason": "FailedMount",
        "message": "hostPath type check failed: /models/x is not a directory",
        "lastTimestamp": timestamp(),
    }
    world.cluster.create(kinds.EVENT, world.namespace, event)
    eventually(lambda: "is not a directory" in world.condition().get("message", ""), what="the kubelet's words")
    assert world.condition("Degraded")["status"] == "False"
    failed = world.wait_reason("MountFailed")
    assert "is not a directory" in failed["message"]
    assert world.condition("Degraded")["status"] == "True"
