"""Rollouts on a real API server: what exists, what serves and what the status says at every turn."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from pratique_contract import Reason, Verdict, VerdictResult, constants
from pratique_contract.verdict import Reverification
from pratique_operator import kinds, stuck
from tests.integration.operator.conftest import World, eventually
from tests.integration.operator.kubelet import Outcome, timestamp

pytestmark = pytest.mark.integration

SOME_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def downloading(message: str) -> Verdict:
    return Verdict(result=VerdictResult.PENDING, reason=Reason.DOWNLOADING, message=message)


def fail(reason: Reason, message: str) -> Verdict:
    return Verdict(result=VerdictResult.FAIL, reason=reason, message=message)


def test_first_deploy_creates_all_children_and_becomes_ready(world: World) -> None:
    world.create(replicas=2)
    found = world.wait_ready()
    revision = world.target()
    assert sorted(world.children()) == [
        f"ConfigMap/svc-{revision}",
        f"Deployment/svc-{revision}",
        "PodDisruptionBudget/svc",
        "Service/svc",
        f"Service/svc-{revision}",
        "ServiceAccount/svc",
    ]
    status = found["status"]
    assert status["observedGeneration"] == found["metadata"]["generation"]
    assert (status["serving"]["revision"], status["serving"]["weight"], "candidate" in status) == (revision, 100, False)
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    by_type = {c["type"]: c["status"] for c in status["conditions"]}
    assert by_type == {
        "Ready": "True",
        "Available": "True",
        "Progressing": "False",
        "FingerprintVerified": "True",
        "ReviewPassed": "True",
        "Degraded": "False",
    }
    assert all("finalizers" not in child["metadata"] for child in [found, *world.children().values()])


def test_status_is_written_before_anything_is_ready(world: World) -> None:
    """kserve#4454: an empty status until ready tells nobody what is going on."""
    world.kubelet.outcomes[world.namespace] = lambda _: "pulling"
    world.create()
    assert world.wait_reason("Loading")["status"] == "False"
    assert world.condition("Available")["status"] == "False"
    assert world.condition("Progressing")["status"] == "True"


def test_update_keeps_the_stable_until_the_candidate_is_complete_and_restarts_no_pod(world: World) -> None:
    """kserve#4855: the old ReplicaSet went to 0 before the new one was ready."""
    world.create(replicas=2)
    world.wait_ready()
    stable = world.target()
    stable_pods = {pod["metadata"]["uid"] for pod in world.list(kinds.POD)}
    world.kubelet.outcomes[world.namespace] = lambda pod: (
        "ready" if pod["metadata"]["labels"][constants.LABEL_REVISION] == stable else "running"
    )
    world.create(replicas=2, model={"uri": "file:///models/x", "name": "other"})
    candidate = world.target()
    eventually(lambda: len(world.list(kinds.POD)) == 4, what="the candidate's pods are there")
    assert world.entry() == stable
    status = world.status()
    assert (status["serving"]["revision"], status["candidate"]["revision"]) == (stable, candidate)
    assert (world.condition("Ready")["status"], world.condition("Available")["status"]) == ("False", "True")
    seen: list[tuple[str | None, int]] = []

    def done() -> bool:
        pods = [p for p in world.list(kinds.POD) if "deletionTimestamp" not in p["metadata"]]
        old = sum(p["metadata"]["labels"][constants.LABEL_REVISION] == stable for p in pods)
        seen.append((world.entry(), old))
        return bool(old == 0)

    world.kubelet.outcomes[world.namespace] = lambda _: "ready"
    eventually(done, what="the old pods are gone")
    assert all(old == 2 for entry, old in seen if entry == stable)
    world.wait_ready()
    assert stable_pods.isdisjoint(pod["metadata"]["uid"] for pod in world.list(kinds.POD))


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


def test_failed_re_verification_of_a_serving_pod_is_told_and_stops_nothing(world: World) -> None:
    """kserve#6259: green for ever after the accelerator broke."""
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


def test_newer_spec_replaces_a_broken_candidate_and_going_back_removes_it(world: World) -> None:
    """kthena#743, dynamo#13620."""
    world.create()
    world.wait_ready()
    stable = world.target()
    stable_pod = world.list(kinds.POD)[0]["metadata"]["uid"]
    world.kubelet.outcomes[world.namespace] = lambda pod: (
        "ready" if pod["metadata"]["labels"][constants.LABEL_REVISION] == stable else "crashing"
    )
    world.create(engine={"image": "localhost/none:2"})
    world.wait_reason("CrashLooping")
    broken = world.target()
    world.create(engine={"image": "localhost/none:3"})
    eventually(lambda: f"Deployment/svc-{broken}" not in world.children(), what="the broken candidate is gone")
    assert world.target() not in (stable, broken)
    world.create()
    world.wait_ready()
    assert world.target() == stable
    eventually(lambda: len(world.list(kinds.POD)) == 1, what="only the stable's pod is left")
    assert world.list(kinds.POD)[0]["metadata"]["uid"] == stable_pod
    assert [key for key in world.children() if key.startswith("Deployment")] == [f"Deployment/svc-{stable}"]


def test_broken_first_deploy_is_replaced_by_a_fixed_spec(world: World) -> None:
    world.kubelet.outcomes[world.namespace] = lambda pod: (
        "oom" if pod["spec"]["containers"][0]["image"].endswith(":1") else "ready"
    )
    world.create()
    assert world.wait_reason("OutOfMemory")["status"] == "False"
    world.create(engine={"image": "localhost/none:2"})
    world.wait_ready()
    eventually(lambda: len([k for k in world.children() if k.startswith("Deployment")]) == 1, what="one revision")


def test_recreate_stops_the_old_pods_before_the_new_ones_start(world: World) -> None:
    """knative serving-progressive-rollout#204: no room for two revisions at once."""
    world.create(rollout={"strategy": "Recreate"})
    world.wait_ready()
    most = 0
    world.create(rollout={"strategy": "Recreate"}, engine={"image": "localhost/none:2"})
    revision = world.target()

    def done() -> bool:
        nonlocal most
        most = max(most, len(world.list(kinds.POD)))
        return bool(world.condition("Ready").get("status") == "True")

    eventually(done, what="the new revision serves")
    assert (most, world.entry()) == (1, revision)


def test_old_revisions_are_kept_up_to_the_history_limit(world: World) -> None:
    for number in range(1, 5):
        world.create(engine={"image": f"localhost/none:{number}"}, rollout={"revisionHistoryLimit": 1})
        world.wait_ready()

    def two() -> bool:
        return len([key for key in world.children() if key.startswith("Deployment")]) == 2

    eventually(two, what="the serving revision and one old one are left")
    assert sum(key.startswith("ConfigMap") for key in world.children()) == 2


def test_scale_subresource_changes_replicas_of_the_serving_pods(world: World) -> None:
    """LLMKube#1881, kserve#3768: /scale must work, and an update must not undo it."""
    world.create()
    world.wait_ready()
    path = kinds.INFERENCE_SERVICE.path(world.namespace, "svc", "scale")
    scale = world.cluster._call("GET", path)
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (1, 1)
    body = {"spec": {"replicas": 3}}
    world.cluster._call("PATCH", path, body=body, content_type="application/merge-patch+json")
    eventually(lambda: world.status().get("readyReplicas") == 3, what="three pods are ready")
    selector = world.cluster._call("GET", path)["status"]["selector"]
    assert len(world.cluster.list(kinds.POD, world.namespace, selector)) == 3
    world.create(engine={"image": "localhost/none:2"})
    world.wait_ready()
    assert world.status()["readyReplicas"] == 3


def test_paused_holds_a_new_revision_back(world: World) -> None:
    world.create()
    world.wait_ready()
    stable = world.target()
    world.create(engine={"image": "localhost/none:2"}, rollout={"paused": True})
    assert world.wait_reason("Paused")["status"] == "False"
    assert [key for key in world.children() if key.startswith("Deployment")] == [f"Deployment/svc-{stable}"]
    world.create(engine={"image": "localhost/none:2"})
    world.wait_ready()
    assert world.entry() != stable


def test_deadline_is_told_and_the_stable_serves_on(world: World) -> None:
    world.create()
    world.wait_ready()
    stable = world.target()
    world.kubelet.outcomes[world.namespace] = lambda pod: (
        "ready" if pod["metadata"]["labels"][constants.LABEL_REVISION] == stable else "pulling"
    )
    world.create(engine={"image": "localhost/none:2"}, rollout={"progressDeadlineSeconds": 3})
    assert world.wait_reason("Loading")
    late = world.wait_reason("ProgressDeadlineExceeded")
    assert "Loading" in late["message"]
    assert (world.condition("Progressing")["status"], world.condition("Degraded")["status"]) == ("False", "True")
    assert (world.status()["rollout"]["phase"], world.entry()) == ("Failed", stable)


def test_pods_without_room_wait_for_capacity_and_are_not_a_failure(world: World) -> None:
    """kaito PR #2203: what the scheduler says must reach the user."""
    world.create(template={"spec": {"nodeSelector": {"pratique.test/node": "nowhere"}}})
    ready = world.wait_reason("WaitingForCapacity")
    assert "nodes are available" in ready["message"]
    assert world.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize(("outcome", "reason"), [("pull-failed", "ImagePullFailed"), ("crashing", "CrashLooping")])
def test_container_failures_are_conditions_and_one_event(world: World, outcome: str, reason: str) -> None:
    """gpustack#5869, kserve#1859: ImagePullBackOff hidden, Ready=True over a crash loop."""
    world.kubelet.outcomes[world.namespace] = lambda _: outcome  # type: ignore[assignment,return-value]
    world.create(replicas=3)
    assert world.wait_reason(reason)["status"] == "False"
    eventually(lambda: len(world.status()["verdicts"]) == 3, what="every failing pod is listed")

    def told() -> list[str]:
        events = world.cluster.list(kinds.EVENT, world.namespace)
        return [e["reason"] for e in events if e["involvedObject"]["kind"] == constants.KIND]

    eventually(lambda: reason in told(), what="an event")
    world.operator.stop()
    world.operator.start()
    world.create(replicas=2)
    eventually(lambda: world.status().get("observedGeneration") == 2, what="the change is seen")
    assert told().count(reason) == 1


HUB = {"uri": "hf://owner/name", "revision": "a" * 40}


def test_download_is_told_from_its_first_byte_to_its_failure_and_its_end(world: World) -> None:
    """kaito#344: a pod that downloads, or fails to, looked like one that is being created."""
    outcome: list[Outcome] = ["fetching"]
    world.kubelet.outcomes[world.namespace] = lambda _: outcome[0]
    world.operator.verdicts["*"] = downloading("1.0 of 2.0 GB (50 %), 80 MB/s")
    world.create(model=HUB)
    eventually(lambda: "1.0 of 2.0 GB" in world.wait_reason("Downloading")["message"], what="the fetcher's words")
    assert world.condition("Degraded")["status"] == "False"
    before = world.service()["metadata"]["resourceVersion"]
    for percent in range(60, 66):
        world.operator.verdicts["*"] = downloading(f"{percent} %")
        time.sleep(0.15)
    # Six moves in a second and not one write: only every progress_seconds (10) would there be one.
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
    events = world.cluster.list(kinds.EVENT, world.namespace)
    told = [e["reason"] for e in events if e["involvedObject"]["kind"] == constants.KIND]
    assert sorted(told) == ["DownloadUnauthorized", "Promoted"]


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
