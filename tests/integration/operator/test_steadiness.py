"""Nothing moves when nothing changes; everything comes back when it is disturbed; nothing is left when it is deleted."""

import json
import time
from typing import Any

import pytest
from kubernetes import client

from pratique_contract import constants
from pratique_operator import kinds
from tests.integration.operator.conftest import World, eventually
from tests.support.releases import make_record

pytestmark = pytest.mark.integration

HUB = {"uri": "hf://owner/name", "revision": "a" * 40}
FULL_TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"example/note": "b"}},
    "spec": {
        "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"memory": "2048Mi"}},
        "env": [{"name": "A", "value": "1"}],
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": {"team": "a"}},
                        },
                    }
                ]
            }
        },
    },
}


def test_no_write_over_several_resyncs(world: World) -> None:
    """LLMKube#1139: two owners of one field, an endless rollout. Here: not one resource version moves."""
    world.create(replicas=2, template=FULL_TEMPLATE)
    world.wait_ready()
    before = world.settle()
    time.sleep(2.0)
    assert world.versions() == before
    assert len(before) == 7


def test_no_write_while_a_candidate_fails(world: World) -> None:
    world.create()
    world.wait_ready()
    stable = world.target()
    world.kubelet.outcomes[world.namespace] = lambda pod: (
        "ready" if pod["metadata"]["labels"][constants.LABEL_REVISION] == stable else "crashing"
    )
    world.create(engine={"image": "localhost/none:2"})
    world.wait_reason("CrashLooping")
    before = world.settle()
    time.sleep(1.5)
    assert world.versions() == before


def test_pod_affecting_change_gives_a_new_revision_and_no_other_does(world: World) -> None:
    """kserve#3683, kubeai#219: changes that rolled nothing. Every field's turn is in the unit test of the revision."""
    world.kubelet.outcomes[world.namespace] = lambda _: "pulling"
    world.create()
    first = world.target()
    world.create(limits={"maxPromptTokens": 10})
    second = world.target()
    world.create(replicas=2, rollout={"strategy": "Recreate", "revisionHistoryLimit": 5})
    assert (world.target(), second != first) == (first, True)


def test_content_of_referenced_objects_is_part_of_the_revision(slow_world: World) -> None:
    """linagora/openrag#985, rustfs/helm#16: a rotated Secret that nobody noticed. Here without any resync in time."""
    world = slow_world

    def put(kind: str, value: str) -> None:
        text = {"data" if kind == "ConfigMap" else "stringData": {"k": value}}
        world.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": "ref"}, **text})

    def revision_becomes_other_than(seen: set[str]) -> str:
        eventually(lambda: world.target() not in seen, what="another revision")
        return world.target()

    world.kubelet.outcomes[world.namespace] = lambda _: "pulling"
    put("ConfigMap", "one")
    put("Secret", "one")
    env = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "ref", "key": "k"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "ref", "key": "k"}}},
    ]
    world.create(template={"spec": {"env": env}}, chatTemplate={"configMapKeyRef": {"name": "ref", "key": "k"}})
    seen = {world.target()}
    put("ConfigMap", "two")
    seen.add(revision_becomes_other_than(seen))
    put("Secret", "two")
    seen.add(revision_becomes_other_than(seen))
    assert len(seen) == 3


def test_missing_reference_is_a_sentence_and_heals_when_it_comes(world: World) -> None:
    world.create(chatTemplate={"configMapKeyRef": {"name": "late", "key": "k"}})
    ready = world.wait_reason("InvalidSpec")
    assert "spec.chatTemplate.configMapKeyRef: there is no ConfigMap late" in ready["message"]
    assert world.children() == {}
    world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"k": "text"}})
    world.wait_ready()


def test_record_that_is_missing_or_another_holds_new_pods_back_and_touches_no_old_ones(world: World) -> None:
    record = make_record()
    world.create()
    world.wait_ready()
    stable = world.target()
    before = {key: version for key, version in world.settle().items() if key != "self"}
    approved = {"fingerprint": record.fingerprint, "recordRef": {"name": "rel"}}
    world.create(release=approved)
    missing = world.wait_reason("RecordMissing")
    assert "there is no ConfigMap rel" in missing["message"]
    assert world.condition("FingerprintVerified")["status"] == "False"
    world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rel"}, "data": {"record.json": "{}"}})
    eventually(lambda: "not valid at manifest" in world.condition()["message"], what="the record is unreadable")
    other = "sha256:" + "0" * 64
    world.create(release={**approved, "fingerprint": other})
    # A pass that read the spec before this change and the record after the next would rightly find them in agreement.
    world.wait_reason("RecordMissing")
    data = {"record.json": record.to_json()}
    world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rel"}, "data": data})
    eventually(lambda: other in world.condition().get("message", ""), what="both fingerprints are named")
    assert record.fingerprint in world.condition()["message"]
    assert {key: version for key, version in world.versions().items() if key != "self"} == before
    assert (world.entry(), world.condition("Available")["status"]) == (stable, "True")
    world.create(release=approved)
    found = world.wait_ready()
    assert found["status"]["serving"]["fingerprint"] == record.fingerprint
    config = world.children()[f"ConfigMap/svc-{world.target()}"]
    assert config["data"]["record.json"] == record.to_json()
    world.create(release={**approved, "fingerprint": other}, replicas=2)
    eventually(
        lambda: world.status()["readyReplicas"] == 2, what="the serving revision scales while the spec is blocked"
    )
    assert world.wait_reason("RecordMissing")["status"] == "False"


def test_fields_that_the_api_server_dropped_are_named(world: World) -> None:
    """A typing error under --validate=false: stored nowhere, so kubectl's own copy of the manifest is the only trace."""
    manifest = world.manifest()
    manifest["spec"] |= {"adaptors": [], "download": {"caches": {}}, "model": HUB}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(manifest)}
    manifest["metadata"] |= {"annotations": annotations}
    world.cluster.create(kinds.INFERENCE_SERVICE, world.namespace, manifest)
    world.wait_ready()
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "UnknownFields")
    assert "spec.adaptors" in degraded["message"]
    assert "spec.download.caches" in degraded["message"]


def test_drift_is_repaired(slow_world: World) -> None:
    """Without any resync in time: the watch of each kind must bring the pass."""
    world = slow_world
    world.create()
    world.wait_ready()
    revision = world.target()
    core = world.cluster
    core.patch(kinds.DEPLOYMENT, world.namespace, f"svc-{revision}", {"spec": {"replicas": 3}})
    eventually(
        lambda: world.children()[f"Deployment/svc-{revision}"]["spec"]["replicas"] == 1, what="replicas are back"
    )
    core.patch(kinds.SERVICE, world.namespace, "svc", {"spec": {"selector": {constants.LABEL_REVISION: "gone"}}})
    eventually(lambda: world.entry() == revision, what="the selector is back")
    for kind, name in (
        (kinds.SERVICE, "svc"),
        (kinds.SERVICE, f"svc-{revision}"),
        (kinds.CONFIG_MAP, f"svc-{revision}"),
        (kinds.POD_DISRUPTION_BUDGET, "svc"),
        (kinds.SERVICE_ACCOUNT, "svc"),
        (kinds.DEPLOYMENT, f"svc-{revision}"),
    ):
        core._call("DELETE", kind.path(world.namespace, name))
        eventually(lambda k=kind, n=name: core.get(k, world.namespace, n), what=f"{kind.kind} {name} is back")  # type: ignore[misc]
    world.wait_ready()


def test_name_taken_by_a_stranger_is_told_and_never_overwritten(world: World) -> None:
    body = {"metadata": {"name": "svc"}, "spec": {"selector": {"app": "other"}, "ports": [{"port": 1}]}}
    world.apply({"apiVersion": "v1", "kind": "Service", **body})
    world.create()
    assert "Service svc exists and does not belong to this service" in world.wait_reason("InvalidSpec")["message"]
    found = world.cluster.get(kinds.SERVICE, world.namespace, "svc")
    assert found is not None
    assert found["spec"]["selector"] == {"app": "other"}
    world.cluster._call("DELETE", kinds.SERVICE.path(world.namespace, "svc"))
    world.wait_ready()


@pytest.mark.parametrize("operator_up", [True, False])
def test_deletion_leaves_nothing(world: World, operator_up: bool) -> None:
    """nolar/kopf#1305, kaito#932: finalizers that nobody takes away."""
    world.create()
    world.wait_ready()
    if not operator_up:
        world.operator.stop()
    world.delete()
    eventually(lambda: world.children() == {} and world.list(kinds.POD) == [], timeout=30, what="nothing is left")
    assert world.cluster.get(kinds.INFERENCE_SERVICE, world.namespace, "svc") is None


def test_service_recreated_under_the_same_name_takes_over_nothing_of_the_old_one(world: World) -> None:
    world.create()
    first = world.wait_ready()["metadata"]["uid"]
    world.delete()
    world.create()
    eventually(lambda: world.service()["metadata"]["uid"] != first, what="another object")
    world.wait_ready(timeout=30)
    owners = {child["metadata"]["ownerReferences"][0]["uid"] for child in world.children().values()}
    assert owners == {world.service()["metadata"]["uid"]}


def test_operator_restarted_again_and_again_in_mid_creation_converges(world: World) -> None:
    world.operator.stop()
    world.create(replicas=2)
    for milliseconds in (60, 120, 180, 260):
        world.operator.start()
        time.sleep(milliseconds / 1000)
        world.operator.stop()
    world.operator.start()
    world.wait_ready()
    before = world.settle()
    world.operator.stop()
    world.operator.start()
    time.sleep(1.5)
    assert world.versions() == before


def test_quick_successive_updates_end_in_the_last_one(world: World) -> None:
    """dynamo#13353: quick successive updates restarted everything."""
    world.create()
    world.wait_ready()
    for number in range(2, 8):
        world.create(engine={"image": f"localhost/none:{number}"})
    world.wait_ready()
    pods = world.list(kinds.POD)
    assert {pod["spec"]["containers"][0]["image"] for pod in pods if "deletionTimestamp" not in pod["metadata"]} == {
        "localhost/none:7"
    }


def test_two_operators_share_a_cluster_by_name(world: World) -> None:
    manifest = world.manifest("other")
    manifest["metadata"]["labels"][constants.LABEL_OPERATOR] = "somebody-else"
    world.apply(manifest)
    world.create()
    world.wait_ready()
    assert world.children("other") == {}
    assert "status" not in world.service("other")


def test_any_text_of_a_template_reaches_the_pod_unchanged(world: World) -> None:
    """Applied objects are read as YAML: emojis and control characters must survive, and nothing is written twice for them."""
    text = "{{ '\U0001f600' }} \x7f \x9b \ufeff \u2028 \\ud83d ünïcödé \t end \n"
    world.create(chatTemplate={"inline": text})
    world.wait_ready()
    config = world.children()[f"ConfigMap/svc-{world.target()}"]
    assert json.loads(config["data"][constants.SERVING_FILE])["chatTemplate"] == text
    before = world.settle()
    time.sleep(1.2)
    assert world.versions() == before


def test_pods_satisfy_the_restricted_pod_security_standard(world: World) -> None:
    """The API server's own admission is the judge."""
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    client.CoreV1Api(world.admin).patch_namespace(world.namespace, label)
    world.create(model={"uri": "pvc://models/x"}, auth={"apiKeySecretRef": {"name": "keys"}})
    eventually(lambda: world.list(kinds.POD), what="the pod is admitted")
    assert 'persistentvolumeclaim "models" not found' in world.wait_reason("InvalidSpec")["message"]
    world.create("fetched", model=HUB, download={"credentialsSecretRef": {"name": "hub"}})
    eventually(lambda: world.list(kinds.POD, "fetched"), what="the pod that fetches is admitted")
    world.create("node-folder")
    refused = world.wait_reason("InvalidSpec", name="node-folder")
    assert "violates PodSecurity" in refused["message"]
    assert "hostPath" in refused["message"]
