"""Rollouts on a real API server: what exists and what serves at every turn."""

import pytest

from pratique_contract import constants
from pratique_operator import kinds
from tests.integration.operator.changes import eventually
from tests.integration.operator.world import World
from tests.support.releases import make_record

pytestmark = pytest.mark.integration

RECORD = make_record()


def test_first_deploy_creates_all_children_and_becomes_ready(world: World) -> None:
    world.create(replicas=2)
    found = world.wait_ready()
    revision = world.target()
    assert sorted(world.children()) == [
        f"ConfigMap/svc-{revision}",
        f"Deployment/svc-{revision}",
        "NetworkPolicy/svc",
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
    assert world.condition("ReviewPassed")["reason"] == "NothingToCompare"
    assert by_type == {
        "Ready": "True",
        "Available": "True",
        "Progressing": "False",
        "FingerprintVerified": "True",
        "ReviewPassed": "Unknown",
        "Degraded": "False",
    }
    assert all("finalizers" not in child["metadata"] for child in [found, *world.children().values()])


def test_status_says_which_revision_of_the_model_serves_whatever_its_source(world: World) -> None:
    digest, commit = "sha256:" + "d" * 64, "c" * 40
    sources = {
        "hub": ({"uri": "hf://owner/name", "revision": commit}, commit),
        "artifact": ({"uri": f"oci://registry.example/models/x@{digest}"}, digest),
        "archive": ({"uri": "https://host.example/x.tar", "revision": digest}, digest),
        "bucket": ({"uri": "s3://bucket/x", "revision": digest}, digest),
        "folder": ({"uri": "file:///models/x"}, RECORD.manifest.model.revision),
    }
    data = {constants.RECORD_FILE: RECORD.to_json()}
    world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rel"}, "data": data})
    release = {"fingerprint": RECORD.fingerprint, "recordRef": {"name": "rel"}}
    for name, (model, _) in sources.items():
        world.create(name, model=model, release=release)
    for name, (_, revision) in sources.items():
        assert world.wait_ready(name)["status"]["serving"]["modelRevision"] == revision, name


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
    eventually(lambda: broken not in world.deployed(), what="the broken candidate is gone")
    assert world.target() not in (stable, broken)
    world.create()
    world.wait_ready()
    assert world.target() == stable
    eventually(lambda: len(world.list(kinds.POD)) == 1, what="only the stable's pod is left")
    assert world.list(kinds.POD)[0]["metadata"]["uid"] == stable_pod
    assert world.deployed() == [stable]


def test_broken_first_deploy_is_replaced_by_a_fixed_spec(world: World) -> None:
    world.kubelet.outcomes[world.namespace] = lambda pod: (
        "oom" if pod["spec"]["containers"][0]["image"].endswith(":1") else "ready"
    )
    world.create()
    assert world.wait_reason("OutOfMemory")["status"] == "False"
    world.create(engine={"image": "localhost/none:2"})
    world.wait_ready()
    eventually(lambda: len(world.deployed()) == 1, what="one revision")


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
        return len(world.deployed()) == 2

    eventually(two, what="the serving revision and one old one are left")
    assert len(world.list(kinds.CONFIG_MAP)) == 2


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
    assert world.deployed() == [stable]
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
