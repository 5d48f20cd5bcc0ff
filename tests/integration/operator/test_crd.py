"""The CRD on a real API server: refused values name the field, good ones pass, subresources work as a person expects."""

from typing import Any

import pytest

from pratique_contract import constants
from pratique_operator import kinds
from pratique_operator.errors import RejectedError
from tests.integration.operator.conftest import World

pytestmark = pytest.mark.integration

MODEL = {"uri": "pvc://models/x"}

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no model": ({}, "spec.model", "Required value"),
    "unknown scheme": ({"model": {"uri": "hf://a/b"}}, "spec.model.uri", "not supported yet"),
    "bad claim": ({"model": {"uri": "pvc://Bad_Claim"}}, "spec.model.uri", "pvc://CLAIM"),
    "relative folder": ({"model": {"uri": "file://models"}}, "spec.model.uri", "file:///ABSOLUTE/PATH"),
    "parent segment": ({"model": {"uri": "file:///models/../etc"}}, "spec.model.uri", "segments"),
    "branch": ({"model": {**MODEL, "revision": "main"}}, "spec.model.revision", "can move"),
    "tokenizer scheme": ({"model": MODEL, "tokenizer": {"uri": "s3://a"}}, "spec.tokenizer.uri", "not supported yet"),
    "two templates": (
        {"model": MODEL, "chatTemplate": {"inline": "x", "configMapKeyRef": {"name": "a", "key": "b"}}},
        "spec.chatTemplate",
        "exactly one",
    ),
    "no template": ({"model": MODEL, "chatTemplate": {}}, "spec.chatTemplate", "exactly one"),
    "quantization": ({"model": MODEL, "quantization": {"method": "AWQ"}}, "spec.quantization.method", "None"),
    "dtype": ({"model": MODEL, "quantization": {"dtype": "FP64"}}, "spec.quantization.dtype", "BF16"),
    "engine": ({"model": MODEL, "engine": {"name": "Steam"}}, "spec.engine.name", "Torch"),
    "latest": ({"model": MODEL, "engine": {"image": "a/b:latest"}}, "spec.engine.image", "latest can move"),
    "no tag": ({"model": MODEL, "engine": {"image": "host:5000/b"}}, "spec.engine.image", "without a tag"),
    "identity flag": (
        {"model": MODEL, "engine": {"args": ["--model=/x"]}},
        "spec.engine.args",
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
    "zero length": (
        {"model": MODEL, "engine": {"maxModelLen": 0}},
        "spec.engine.maxModelLen",
        "greater than or equal to 1",
    ),
    "fingerprint": ({"model": MODEL, "release": {"fingerprint": "sha256:x"}}, "spec.release.fingerprint", "sha256"),
    "policy": ({"model": MODEL, "release": {"policy": "Hope"}}, "spec.release.policy", "Enforce"),
    "negative replicas": ({"model": MODEL, "replicas": -1}, "spec.replicas", "greater than or equal to 0"),
    "canary": ({"model": MODEL, "rollout": {"strategy": "Canary"}}, "spec.rollout.strategy", "Rolling"),
    "reserved variable": (
        {"model": MODEL, "template": {"spec": {"env": [{"name": "HF_HUB_OFFLINE", "value": "0"}]}}},
        "spec.template.spec.env[0].name",
        "belong to the operator",
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
        "spec.template.spec.resources.limits.memory",
        "should match",
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
        quantization={"method": "None", "dtype": "BF16"},
        engine={
            "name": "Torch",
            "image": "host:5000/a/b@sha256:" + "a" * 64,
            "maxModelLen": 4096,
            "maxNumSeqs": 8,
            "maxBatchedTokens": 256,
            "kvCache": {"memory": "2Gi", "blockSize": 16, "dtype": "BF16"},
            "args": ["--seed=1"],
        },
        release={"fingerprint": "sha256:" + "b" * 64, "recordRef": {"name": "r"}, "policy": "Enforce"},
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
                "imagePullSecrets": [{"name": "pull"}],
            },
        },
    )


def test_only_replicas_is_defaulted_in_the_stored_object(bare: World) -> None:
    """kserve#2232: defaults written into the spec look like drift to whoever keeps it in git."""
    manifest = bare.manifest()
    stored = bare.apply(manifest)
    assert stored["spec"] == {**manifest["spec"], "replicas": 1}


def test_columns_show_what_serves_before_what_is_wanted(bare: World) -> None:
    bare.create()
    path = kinds.INFERENCE_SERVICE.path(bare.namespace)
    table = bare.table(path)
    assert [column["name"] for column in table["columnDefinitions"]][:7] == [
        "Name",
        "Ready",
        "Revision",
        "Candidate",
        "Replicas",
        "Verified",
        "Reason",
    ]


def test_short_name_is_ours(bare: World) -> None:
    resources = bare.cluster._call("GET", f"/apis/{constants.API_VERSION}")["resources"]
    found = next(r for r in resources if r["name"] == constants.PLURAL)
    assert found["shortNames"] == ["psvc"]
    assert {r["name"] for r in resources} >= {f"{constants.PLURAL}/status", f"{constants.PLURAL}/scale"}
