"""What the spec says and what it refers to: which change makes another revision, and what is told when something is missing or wrong."""

import json

import pytest

from pratique_operator import kinds
from tests.integration.operator.changes import eventually
from tests.integration.operator.namespaces import NAMESPACE
from tests.integration.operator.world import World
from tests.support.releases import make_record

pytestmark = pytest.mark.integration


HUB = {"uri": "hf://owner/name", "revision": "a" * 40}


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

    def put(kind: str, value: str, name: str = "ref") -> None:
        text = {"data" if kind == "ConfigMap" else "stringData": {"k": value}}
        world.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **text})

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
    put("ConfigMap", "one", "files")
    put("Secret", "one", "files")
    volumes = [{"name": "a", "configMap": {"name": "files"}}, {"name": "b", "secret": {"secretName": "files"}}]
    mounts = [{"name": "a", "mountPath": "/mnt/a"}, {"name": "b", "mountPath": "/mnt/b"}]
    template = {"spec": {"env": env, "volumes": volumes, "volumeMounts": mounts}}
    world.create(template=template, chatTemplate={"configMapKeyRef": {"name": "ref", "key": "k"}})
    seen = {world.target()}
    for name in ("ref", "files"):
        for kind in ("ConfigMap", "Secret"):
            put(kind, "two", name)
            seen.add(revision_becomes_other_than(seen))
    assert len(seen) == 5


def test_missing_volume_is_a_sentence_and_a_release_cannot_be_mounted_to_be_written(world: World) -> None:
    volume = {"name": "ca", "configMap": {"name": "late", "items": [{"key": "k", "path": "ca.crt"}]}}
    mount = {"name": "ca", "mountPath": "/mnt/ca"}
    world.create(template={"spec": {"volumes": [volume], "volumeMounts": [mount]}})
    assert "volumes[ca]: there is no ConfigMap late" in world.wait_reason("InvalidSpec")["message"]
    world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"k": "text"}})
    world.wait_ready()
    (pod,) = world.list(kinds.POD)
    mounts = {found["mountPath"]: found["name"] for found in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["/mnt/ca"] == "user-ca"
    claim = {"name": "ca", "persistentVolumeClaim": {"claimName": "models"}}
    world.create(model={"uri": "pvc://models/x"}, template={"spec": {"volumes": [claim], "volumeMounts": [mount]}})
    assert "claim models holds spec.model.uri" in world.wait_reason("InvalidSpec")["message"]


def test_missing_reference_is_a_sentence_and_heals_when_it_comes(world: World) -> None:
    world.create(chatTemplate={"configMapKeyRef": {"name": "late", "key": "k"}})
    ready = world.wait_reason("InvalidSpec")
    assert "spec.chatTemplate.configMapKeyRef: there is no ConfigMap late" in ready["message"]
    assert world.children() == {}
    world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"k": "text"}})
    world.wait_ready()


def test_record_that_is_missing_or_another_holds_new_pods_back_and_touches_no_old_ones(quick_world: World) -> None:
    world, record = quick_world, make_record()
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


def restrict(world: World, level: str | None) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}
    world.cluster.patch(NAMESPACE, "", world.namespace, label)


def test_pods_satisfy_the_restricted_pod_security_standard(world: World, request: pytest.FixtureRequest) -> None:
    """The API server's own admission is the judge."""
    restrict(world, "restricted")
    request.addfinalizer(lambda: restrict(world, None))
    world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca"}, "data": {"k": "text"}})
    volumes = [{"name": "ca", "configMap": {"name": "ca"}}, {"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}]
    mounts = [{"name": "ca", "mountPath": "/mnt/ca"}, {"name": "shm", "mountPath": "/dev/shm"}]
    world.create(
        model={"uri": "pvc://models/x"},
        auth={"apiKeySecretRef": {"name": "keys"}},
        template={"spec": {"volumes": volumes, "volumeMounts": mounts}},
    )
    eventually(lambda: world.list(kinds.POD), what="the pod is admitted")
    assert 'persistentvolumeclaim "models" not found' in world.wait_reason("InvalidSpec")["message"]
    world.create("fetched", model=HUB, download={"credentialsSecretRef": {"name": "hub"}})
    eventually(lambda: world.list(kinds.POD, "fetched"), what="the pod that fetches is admitted")
    world.create("node-folder")
    refused = world.wait_reason("InvalidSpec", name="node-folder")
    assert "violates PodSecurity" in refused["message"]
    assert "hostPath" in refused["message"]
