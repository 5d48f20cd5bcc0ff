"""The CRD on a real API server: refused values name the field, good ones pass, subresources work as a person expects."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pratique_contract import constants
from pratique_operator import kinds
from pratique_operator.errors import RejectedError
from pratique_operator.kinds import Kind
from tests.integration.operator.conftest import REPOSITORY
from tests.integration.operator.world import World

pytestmark = pytest.mark.integration

MODEL = {"uri": "pvc://models/x"}
COMMIT, DIGEST = "a" * 40, "sha256:" + "b" * 64
HUB = {"uri": "hf://owner/name", "revision": COMMIT}


def fetched(**download: Any) -> dict[str, Any]:
    return {"model": HUB, "download": download}


VOLUME: dict[str, Any] = {"name": "v", "configMap": {"name": "c"}}
MOUNT: dict[str, Any] = {"name": "v", "mountPath": "/mnt/v"}


def mounted(volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": MODEL, "template": {"spec": {"volumes": volumes, "volumeMounts": mounts}}}


def mounted_at(path: str) -> tuple[dict[str, Any], str, str]:
    where = "spec.template.spec.volumeMounts[0].mountPath"
    return mounted([VOLUME], [{**MOUNT, "mountPath": path}]), where, "below /mnt, or at /dev/shm"


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no model": ({}, "spec.model", "Required value"),
    "unknown scheme": ({"model": {"uri": "ftp://a/b"}}, "spec.model.uri", "a source is hf://OWNER/NAME"),
    "no scheme": ({"model": {"uri": "owner/name"}}, "spec.model.uri", "a source is hf://OWNER/NAME"),
    "hub without owner": ({"model": {**HUB, "uri": "hf://name"}}, "spec.model.uri", "hf://OWNER/NAME"),
    "hub with its commit in the address": (
        {"model": {**HUB, "uri": "hf://owner/name@main"}},
        "spec.model.uri",
        "its commit in revision",
    ),
    "hub without commit": ({"model": {"uri": "hf://a/b"}}, "spec.model.revision", "hf:// needs revision"),
    "hub with a digest": ({"model": {**HUB, "revision": DIGEST}}, "spec.model.revision", "40-digit commit"),
    "artifact by tag": ({"model": {"uri": "oci://host/a:1"}}, "spec.model.uri", "pratique resolve oci://REGISTRY"),
    "artifact with two digests": (
        {"model": {"uri": f"oci://host/a@{DIGEST}", "revision": "sha256:" + "c" * 64}},
        "spec.model.revision",
        "is the digest in its address",
    ),
    "archive without digest": ({"model": {"uri": "https://h/m.tar"}}, "spec.model.revision", "https:// needs revision"),
    "archive of another kind": (
        {"model": {"uri": "https://h/m.zip", "revision": DIGEST}},
        "spec.model.uri",
        "https://HOST/PATH.tar",
    ),
    "archive with a token in it": (
        {"model": {"uri": "https://h/m.tar?token=x", "revision": DIGEST}},
        "spec.model.uri",
        "without credentials and query",
    ),
    "bucket": ({"model": {"uri": "s3://A_B/x"}}, "spec.model.uri", "s3://BUCKET/PREFIX"),
    "adapter without commit": (
        {"model": {**MODEL, "adapters": [{"name": "a", "uri": "hf://a/b"}]}},
        "spec.model.adapters[0].revision",
        "hf:// needs revision",
    ),
    "adapter twice": (
        {"model": {**MODEL, "adapters": [{"name": "a", "uri": "pvc://m/a"}, {"name": "a", "uri": "pvc://m/b"}]}},
        "spec.model.adapters",
        "duplicate entries",
    ),
    "adapter name": (
        {"model": {**MODEL, "adapters": [{"name": "A/b", "uri": "pvc://m/a"}]}},
        "spec.model.adapters[0].name",
        "lower-case letters, digits and - only",
    ),
    "adapter applied per request": (
        {"model": {**MODEL, "adapters": [{"name": "a", "uri": "pvc://m/a", "mode": "PerRequest"}]}},
        "spec.model.adapters[0].mode",
        "Merged",
    ),
    "two caches": (fetched(cache={"claimName": "c", "emptyDir": {}}), "spec.download.cache", "exactly one"),
    "no cache": (fetched(cache={}), "spec.download.cache", "exactly one"),
    "cache size": (
        fetched(cache={"emptyDir": {"sizeLimit": "big"}}),
        "spec.download.cache.emptyDir.sizeLimit",
        "such as 512Mi or 20Gi",
    ),
    "less than no cache": (
        fetched(cache={"emptyDir": {"sizeLimit": "-1Gi"}}),
        "spec.download.cache.emptyDir.sizeLimit",
        "of at least 1",
    ),
    "region": (fetched(s3Region="Europe/West"), "spec.download.s3Region", "written like eu-west-1"),
    "credentials by a wrong name": (
        fetched(credentialsSecretRef={"name": "My_Secret"}),
        "spec.download.credentialsSecretRef.name",
        "lower-case letters, digits, - and . only",
    ),
    "relative cache": (fetched(cache={"hostPath": "models"}), "spec.download.cache.hostPath", "/ABSOLUTE/PATH"),
    "endpoint": (fetched(hubEndpoint="hub.example"), "spec.download.hubEndpoint", "https://HOST[:PORT]"),
    "no connections": (fetched(connections=0), "spec.download.connections", "greater than or equal to 1"),
    "download of nothing": ({"model": MODEL, "download": {"connections": 2}}, "spec.download", "nothing is fetched"),
    "bad claim": ({"model": {"uri": "pvc://Bad_Claim"}}, "spec.model.uri", "pvc://CLAIM"),
    "relative folder": ({"model": {"uri": "file://models"}}, "spec.model.uri", "file:///ABSOLUTE/PATH"),
    "parent segment": ({"model": {"uri": "file:///models/../etc"}}, "spec.model.uri", "segments"),
    "branch": (
        {"model": {**HUB, "revision": "main"}},
        "spec.model.revision",
        "pratique resolve URI --revision BRANCH prints",
    ),
    "bucket with a commit": (
        {"model": {"uri": "s3://bucket/x", "revision": COMMIT}},
        "spec.model.revision",
        "digest that pratique resolve s3://… prints",
    ),
    "tokenizer scheme": ({"model": MODEL, "tokenizer": {"uri": "s4://a"}}, "spec.tokenizer.uri", "a source is"),
    "tokenizer without commit": (
        {"model": MODEL, "tokenizer": {"uri": "hf://a/b"}},
        "spec.tokenizer.revision",
        "hf:// needs revision",
    ),
    "two templates": (
        {"model": MODEL, "chatTemplate": {"inline": "x", "configMapKeyRef": {"name": "a", "key": "b"}}},
        "spec.chatTemplate",
        "exactly one",
    ),
    "no template": ({"model": MODEL, "chatTemplate": {}}, "spec.chatTemplate", "exactly one"),
    "quantization": ({"model": MODEL, "quantization": {"method": "AWQ"}}, "spec.quantization.method", "None"),
    "kept layers without a method": (
        {"model": MODEL, "quantization": {"dtype": "BF16", "config": {"keep": ["*.down_proj"]}}},
        "spec.quantization.config.keep",
        "belongs to method Int8WeightOnly",
    ),
    "kept layers of another method": (
        {"model": MODEL, "quantization": {"method": "None", "config": {"keep": ["*.down_proj"]}}},
        "spec.quantization.config.keep",
        "belongs to method Int8WeightOnly",
    ),
    "a setting the method does not have": (
        {"model": MODEL, "quantization": {"method": "Int8WeightOnly", "config": {"groupSize": 128}}},
        "spec.quantization.config.groupSize",
        "field not declared in schema",
    ),
    "a layer no model has": (
        {"model": MODEL, "quantization": {"method": "Int8WeightOnly", "config": {"keep": ["a", "layers[01]"]}}},
        "spec.quantization.config.keep[1]",
        "a layer is named by",
    ),
    "an empty layer name": (
        {"model": MODEL, "quantization": {"method": "Int8WeightOnly", "config": {"keep": [""]}}},
        "spec.quantization.config.keep[0]",
        "a layer is named by",
    ),
    "dtype": ({"model": MODEL, "quantization": {"dtype": "FP64"}}, "spec.quantization.dtype", "BF16"),
    "engine": ({"model": MODEL, "engine": {"name": "Steam"}}, "spec.engine.name", "Torch"),
    "latest": ({"model": MODEL, "engine": {"image": "a/b:latest"}}, "spec.engine.image", "latest can move"),
    "no tag": ({"model": MODEL, "engine": {"image": "host:5000/b"}}, "spec.engine.image", "without a tag"),
    "identity flag": (
        {"model": MODEL, "engine": {"args": ["--seed=1", "--model=/x"]}},
        "spec.engine.args[1]",
        "would change the release",
    ),
    "flag without value": (
        {"model": MODEL, "engine": {"args": ["--port"]}},
        "spec.engine.args",
        "would change the release",
    ),
    "not a flag": ({"model": MODEL, "engine": {"args": ["rm -rf"]}}, "spec.engine.args", "--flag"),
    "cache twice": (
        {"model": MODEL, "engine": {"kvCache": {"blocks": 1, "memory": "1Gi"}}},
        "spec.engine.kvCache",
        "not both",
    ),
    "no K/V cache": (
        {"model": MODEL, "engine": {"kvCache": {"memory": "0"}}},
        "spec.engine.kvCache.memory",
        "of at least 1",
    ),
    "K/V cache of a hundredth of a byte": (
        {"model": MODEL, "engine": {"kvCache": {"memory": "10m"}}},
        "spec.engine.kvCache.memory",
        "of at least 1",
    ),
    "K/V cache beyond all numbers": (
        {"model": MODEL, "engine": {"kvCache": {"memory": "1e400"}}},
        "spec.engine.kvCache.memory",
        "such as 512Mi or 20Gi",
    ),
    "zero length": (
        {"model": MODEL, "engine": {"maxModelLen": 0}},
        "spec.engine.maxModelLen",
        "greater than or equal to 1",
    ),
    "fingerprint": (
        {"model": MODEL, "release": {"fingerprint": "sha256:x"}},
        "spec.release.fingerprint",
        "64 hex digits",
    ),
    "record without fingerprint": (
        {"model": MODEL, "release": {"recordRef": {"name": "r"}}},
        "spec.release.fingerprint",
        "recordRef needs fingerprint",
    ),
    "signature without record": (
        {"model": MODEL, "release": {"signature": {"secretKeyRef": {"name": "s", "key": "k"}}}},
        "spec.release.signature",
        "signature needs recordRef",
    ),
    "signature without key": (
        {"model": MODEL, "release": {"fingerprint": DIGEST, "recordRef": {"name": "r"}, "signature": {}}},
        "spec.release.signature",
        "exactly one of configMapKeyRef and secretKeyRef",
    ),
    "review policy": ({"model": MODEL, "release": {"reviewPolicy": "Hope"}}, "spec.release.reviewPolicy", "Block"),
    "re-verification": (
        {"model": MODEL, "release": {"reverify": {"failures": 0}}},
        "spec.release.reverify.failures",
        "greater than or equal to 1",
    ),
    "policy": ({"model": MODEL, "release": {"policy": "Hope"}}, "spec.release.policy", "Enforce"),
    "negative replicas": ({"model": MODEL, "replicas": -1}, "spec.replicas", "greater than or equal to 0"),
    "canary": ({"model": MODEL, "rollout": {"strategy": "Canary"}}, "spec.rollout.strategy", "Rolling"),
    "reserved variable": (
        {"model": MODEL, "template": {"spec": {"env": [{"name": "HF_HUB_OFFLINE", "value": "0"}]}}},
        "spec.template.spec.env[0].name",
        "belong to the operator",
    ),
    "variable name": (
        {"model": MODEL, "template": {"spec": {"env": [{"name": "1A", "value": "1"}]}}},
        "spec.template.spec.env[0].name",
        "letters, digits and _ only",
    ),
    "key of a Secret": (
        {"model": MODEL, "chatTemplate": {"secretKeyRef": {"name": "s", "key": "a b"}}},
        "spec.chatTemplate.secretKeyRef.key",
        "letters, digits, -, _ and . only",
    ),
    "variable without value": (
        {"model": MODEL, "template": {"spec": {"env": [{"name": "A"}]}}},
        "spec.template.spec.env[0]",
        "exactly one of value and valueFrom",
    ),
    "empty source": (
        {"model": MODEL, "template": {"spec": {"env": [{"name": "A", "valueFrom": {}}]}}},
        "spec.template.spec.env[0].valueFrom",
        "exactly one of configMapKeyRef and secretKeyRef",
    ),
    "quantity": (
        {"model": MODEL, "template": {"spec": {"resources": {"limits": {"memory": "much"}}}}},
        "spec.template.spec.resources.limits[memory]",
        "such as 500m or 2Gi",
    ),
    "volume over the model": mounted_at("/models"),
    "volume in the model": mounted_at("/models/model/x"),
    "volume over the record": mounted_at("/etc/pratique"),
    "volume over the recorded release": mounted_at("/etc/pratique-recorded"),
    "volume over temporary files": mounted_at("/tmp"),
    "volume over the program": mounted_at("/usr/lib/python3.11/site-packages"),
    "volume over everything": mounted_at("/"),
    "volume that leaves its place": mounted_at("/mnt/../models"),
    "volume with a line break": mounted_at("/mnt/a\n/models"),
    "volume from two places": (
        mounted([{**VOLUME, "secret": {"secretName": "s"}}], [MOUNT]),
        "spec.template.spec.volumes[0]",
        "exactly one of configMap, secret, emptyDir and persistentVolumeClaim",
    ),
    "volume from nowhere": (mounted([{"name": "v"}], [MOUNT]), "spec.template.spec.volumes[0]", "exactly one of"),
    "volume of the node": (
        mounted([{"name": "v", "hostPath": {"path": "/"}}], [MOUNT]),
        'spec.template.spec.volumes[name="v"].hostPath',
        "field not declared in schema",
    ),
    "room without a limit": (
        mounted([{"name": "v", "emptyDir": {}}], [MOUNT]),
        "spec.template.spec.volumes[0].emptyDir.sizeLimit",
        "Required value",
    ),
    "volume twice": (mounted([VOLUME, VOLUME], [MOUNT]), "spec.template.spec.volumes", "duplicate entries"),
    "two volumes at one place": (
        mounted([VOLUME], [MOUNT, MOUNT]),
        "spec.template.spec.volumeMounts",
        "duplicate entries",
    ),
    "volume inside another": (
        mounted([VOLUME], [MOUNT, {**MOUNT, "mountPath": "/mnt/v/w"}]),
        "spec.template.spec.volumeMounts",
        "no mount may lie inside another one",
    ),
    "mount of no volume": (
        mounted([VOLUME], [MOUNT, {"name": "w", "mountPath": "/mnt/w"}]),
        "spec.template.spec.volumeMounts",
        "a mount names one of template.spec.volumes",
    ),
    "volume that nobody sees": (
        mounted([VOLUME, {**VOLUME, "name": "w"}], [MOUNT]),
        "spec.template.spec.volumes",
        "no mount names does nothing",
    ),
    "folder outside of the volume": (
        mounted([VOLUME], [{**MOUNT, "subPath": "../x"}]),
        "spec.template.spec.volumeMounts[0].subPath",
        "a path inside a volume is relative",
    ),
    "file outside of the volume": (
        mounted([{"name": "v", "configMap": {"name": "c", "items": [{"key": "k", "path": "/x"}]}}], [MOUNT]),
        "spec.template.spec.volumes[0].configMap.items[0].path",
        "a path inside a volume is relative",
    ),
    "unknown field": ({"model": MODEL, "replica": 2}, "spec.replica", "field not declared in schema"),
    "field of a later version": ({"model": MODEL, "scaling": {"class": "HPA"}}, "spec.scaling", "not declared"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_value_is_answered_by_the_api_server_with_the_field(bare: World, case: str) -> None:
    spec, field, text = REFUSED[case]
    manifest = {**bare.manifest(), "spec": spec}
    with pytest.raises(RejectedError) as raised:
        bare.apply(manifest)
    message = str(raised.value)
    assert field in message
    assert text in message


@pytest.mark.parametrize("name", ["a" * 51, "1digit", "with.dot"])
def test_name_that_cannot_be_a_service_is_refused(bare: World, name: str) -> None:
    with pytest.raises(RejectedError, match="becomes a Service's name"):
        bare.create(name)


def test_full_spec_is_accepted(bare: World) -> None:
    bare.create(
        model={"uri": "pvc://models/llama/8b", "revision": "a" * 40, "name": "llama"},
        tokenizer={"uri": "pvc://models/tokenizer"},
        chatTemplate={"inline": "{{ messages }}"},
        quantization={
            "method": "Int8WeightOnly",
            "dtype": "BF16",
            "config": {"keep": ["lm_head", "*.down_proj", "lm_head"]},
        },
        engine={
            "name": "Torch",
            "image": "host:5000/a/b@sha256:" + "a" * 64,
            "maxModelLen": 4096,
            "maxNumSeqs": 8,
            "maxBatchedTokens": 256,
            "kvCache": {"memory": "2Gi", "blockSize": 16, "dtype": "BF16"},
            "args": ["--seed=1"],
        },
        release={
            "fingerprint": DIGEST,
            "recordRef": {"name": "r"},
            "policy": "Enforce",
            "reviewPolicy": "Block",
            "signature": {"configMapKeyRef": {"name": "keys", "key": "release.pub"}},
            "reverify": {"intervalSeconds": 0, "failures": 2, "onFailure": "Unready"},
        },
        replicas=2,
        rollout={"strategy": "Recreate", "progressDeadlineSeconds": 60, "revisionHistoryLimit": 0, "paused": False},
        auth={"apiKeySecretRef": {"name": "keys"}},
        limits={"maxBodyBytes": 1000, "maxPromptTokens": 10, "requestTimeoutSeconds": 5},
        startup={"timeoutSeconds": 60, "probeTimeoutSeconds": 30},
        drain={"preStopSeconds": 0, "deadlineSeconds": 5},
        template={
            "metadata": {"labels": {"team": "a"}, "annotations": {"x/y": "z"}},
            "spec": {
                "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
                "affinity": {"nodeAffinity": {}},
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
                "volumes": [
                    {"name": "a", "configMap": {"name": "c", "items": [{"key": "k", "path": "some/file.crt"}]}},
                    {"name": "b", "secret": {"secretName": "s"}},
                    {"name": "c", "emptyDir": {"medium": "Memory", "sizeLimit": 1000000}},
                    {"name": "d", "persistentVolumeClaim": {"claimName": "c", "readOnly": False}},
                ],
                "volumeMounts": [
                    {"name": "a", "mountPath": "/mnt/a/file.crt", "subPath": "some/file.crt"},
                    {"name": "b", "mountPath": "/mnt/b_1/c.d", "readOnly": True},
                    {"name": "c", "mountPath": "/dev/shm"},
                    {"name": "d", "mountPath": "/mnt/d"},
                ],
                "imagePullSecrets": [{"name": "pull"}],
            },
        },
    )


@pytest.mark.parametrize(
    "source",
    [
        HUB,
        {"uri": f"oci://registry.example:5000/models/a@{DIGEST}"},
        {"uri": f"oci://registry.example/a@{DIGEST}", "revision": DIGEST},
        {"uri": "s3://bucket"},
        {"uri": "s3://bucket.name/some/prefix/", "revision": DIGEST},
        {"uri": "https://host.example:8443/path/model.tar.gz", "revision": DIGEST},
    ],
    ids=lambda source: str(source["uri"]).partition(":")[0],
)
def test_every_fetched_source_is_accepted_wherever_a_source_stands(bare: World, source: dict[str, Any]) -> None:
    bare.create(
        model={**source, "adapters": [{"name": "style", **source, "mode": "Merged"}], "trustRemoteCode": True},
        tokenizer=source,
        download={
            "cache": {"emptyDir": {"sizeLimit": "20Gi"}},
            "credentialsSecretRef": {"name": "hub"},
            "hubEndpoint": "https://mirror.example/hub",
            "s3Endpoint": "http://minio.storage:9000",
            "s3Region": "eu-west-1",
            "connections": 16,
            "stallSeconds": 60,
        },
    )


@pytest.mark.parametrize("cache", [{"claimName": "models"}, {"hostPath": "/var/lib/models"}, {"emptyDir": {}}])
def test_every_cache_is_accepted_and_one_fetched_source_is_enough_for_it(bare: World, cache: dict[str, Any]) -> None:
    bare.create(tokenizer=HUB, download={"cache": cache})


@pytest.mark.parametrize("quantization", [{"config": {}}, {"method": "None", "config": {"keep": []}}])
def test_settings_that_say_nothing_go_with_every_method(bare: World, quantization: dict[str, Any]) -> None:
    bare.create(quantization=quantization)


def test_trust_first_is_accepted_without_a_record(bare: World) -> None:
    bare.create(release={"policy": "TrustFirst", "reviewPolicy": "Warn"})


@pytest.mark.parametrize("file", sorted((REPOSITORY / "examples").glob("*.yaml")), ids=lambda file: file.name)
def test_every_example_is_accepted_once_it_is_stamped(bare: World, file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        document["metadata"]["namespace"] = bare.namespace
        if document["kind"] != constants.KIND:
            try_out(bare, document)
            continue
        document["metadata"]["labels"] = {constants.LABEL_OPERATOR: "nobody"}
        with pytest.raises(RejectedError, match="recordRef needs fingerprint"):
            bare.apply(document)
        document["spec"]["release"]["fingerprint"] = DIGEST
        bare.apply(document)


def try_out(world: World, document: dict[str, Any]) -> None:
    """Whether the API server would take an object of its own kinds, without keeping it."""
    kind = Kind(document["apiVersion"], document["kind"], f"{document['kind'].lower()}s")
    query = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "person"}
    path, apply = kind.path(world.namespace, document["metadata"]["name"]), "application/apply-patch+yaml"
    world.cluster._call("PATCH", path, query=query, body=document, content_type=apply)


def test_only_replicas_is_defaulted_in_the_stored_object(bare: World) -> None:
    """kserve#2232: defaults written into the spec look like drift to whoever keeps it in git."""
    manifest = bare.manifest()
    stored = bare.apply(manifest)
    assert stored["spec"] == {**manifest["spec"], "replicas": 1}


def test_columns_show_what_serves_before_what_is_wanted(bare: World) -> None:
    bare.create()
    path = kinds.INFERENCE_SERVICE.path(bare.namespace)
    table = bare.table(path)
    assert [column["name"] for column in table["columnDefinitions"]][:8] == [
        "Name",
        "Ready",
        "Revision",
        "Candidate",
        "Replicas",
        "Verified",
        "Approved",
        "Reason",
    ]


def test_short_name_is_ours(bare: World) -> None:
    resources = bare.cluster._call("GET", f"/apis/{constants.API_VERSION}")["resources"]
    found = next(r for r in resources if r["name"] == constants.PLURAL)
    assert found["shortNames"] == ["psvc"]
    assert {r["name"] for r in resources} >= {f"{constants.PLURAL}/status", f"{constants.PLURAL}/scale"}
