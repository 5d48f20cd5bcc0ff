"""The declared release: every field of the spec is either part of it or not, and which is written down here."""

from typing import Any

import pytest

from pratique_operator.api.engine_types import EngineSpec
from pratique_operator.api.source_types import ModelSpec
from pratique_operator.api.types import InferenceServiceSpec, LimitsSpec, parse_spec
from pratique_operator.release.declaration import (
    ENGINE_NOT_DECLARED,
    LIMITS_DECLARED,
    MODEL_NOT_DECLARED,
    digest_declaration,
)
from pratique_operator.release.references import Reference, References

BASE: dict[str, Any] = {"model": {"uri": "file:///models/x"}}
DECLARED: dict[str, dict[str, Any]] = {
    "model.uri": {"model": {"uri": "file:///models/y"}},
    "model.revision": {"model": {"uri": "file:///models/x", "revision": "a" * 40}},
    "model.adapters": {"model": {"uri": "file:///models/x", "adapters": [{"name": "a", "uri": "file:///models/a"}]}},
    "model.trustRemoteCode": {"model": {"uri": "file:///models/x", "trustRemoteCode": True}},
    "tokenizer": {"tokenizer": {"uri": "file:///models/t"}},
    "chatTemplate": {"chatTemplate": {"inline": "x"}},
    "chatTemplate's text": {"chatTemplate": {"inline": "y"}},
    "quantization": {"quantization": {"dtype": "FP32"}},
    "quantization.config": {"quantization": {"method": "Int8WeightOnly", "config": {"keep": ["a", "b"]}}},
    "engine.name": {"engine": {"name": "Naive"}},
    "engine.maxModelLen": {"engine": {"maxModelLen": 99}},
    "engine.maxNumSeqs": {"engine": {"maxNumSeqs": 3}},
    "engine.maxBatchedTokens": {"engine": {"maxBatchedTokens": 99}},
    "engine.kvCache": {"engine": {"kvCache": {"blocks": 9}}},
    "engine.args": {"engine": {"args": ["--seed=1"]}},
    "limits.maxPromptTokens": {"limits": {"maxPromptTokens": 9}},
    "limits.maxOutputTokens": {"limits": {"maxOutputTokens": 9}},
}
NOT_DECLARED: dict[str, dict[str, Any]] = {
    "model.name": {"model": {"uri": "file:///models/x", "name": "n"}},
    "engine.image": {"engine": {"image": "a/b:2"}},  # the image that runs is given beside the spec
    "release": {"release": {"policy": "TrustFirst", "fingerprint": "sha256:" + "0" * 64, "reviewPolicy": "Block"}},
    "download": {"download": {"connections": 4}},
    "replicas": {"replicas": 7},
    "rollout": {"rollout": {"strategy": "Recreate"}},
    "auth": {"auth": {"apiKeySecretRef": {"name": "k"}}},
    "limits": {"limits": {"maxQueued": 3, "maxBodyBytes": 9, "requestTimeoutSeconds": 5, "maxQueuedTokens": 8}},
    "startup": {"startup": {"timeoutSeconds": 99}},
    "drain": {"drain": {"preStopSeconds": 1}},
    "template": {
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"resources": {"limits": {"memory": "1Gi"}}}}
    },
    "a default, written out": {"engine": {"name": "Torch"}, "quantization": {"method": "None", "config": {"keep": []}}},
}


def digest(image: str = "a/b:1", references: References | None = None, **spec: Any) -> str:
    return digest_declaration(parse_spec({**BASE, **spec}), references or References(), image=image)


def test_every_declared_field_gives_another_release() -> None:
    digests = {name: digest(**change) for name, change in DECLARED.items()}
    digests["unchanged"] = digest()
    digests["another image"] = digest(image="a/b:2")
    assert len(set(digests.values())) == len(DECLARED) + 2, digests


@pytest.mark.parametrize("name", NOT_DECLARED)
def test_what_cannot_change_the_manifest_keeps_the_record(name: str) -> None:
    assert digest(**NOT_DECLARED[name]) == digest()


def test_no_field_of_the_spec_is_forgotten() -> None:
    """A field that nobody put on a list would keep an old record for a new release, or drop a record for nothing."""
    named = {name.split(".")[0].split("'")[0] for name in (*DECLARED, *NOT_DECLARED)}
    assert {field.alias for field in InferenceServiceSpec.model_fields.values()} <= named
    parts = {"model": ModelSpec, "engine": EngineSpec}
    for part, model in parts.items():
        fields = {f"{part}.{field.alias}" for field in model.model_fields.values()}
        assert fields <= {*DECLARED, *NOT_DECLARED}
    assert {"name"} == MODEL_NOT_DECLARED
    assert {"image"} == ENGINE_NOT_DECLARED
    covered = {to_snake(name) for name in NOT_DECLARED["limits"]["limits"]} | LIMITS_DECLARED
    assert set(LimitsSpec.model_fields) == covered


def to_snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def test_kept_layers_in_another_order_are_the_same_declaration() -> None:
    declared = DECLARED["quantization.config"]["quantization"]
    assert digest(quantization={**declared, "config": {"keep": ["b", "a", "b"]}}) == digest(quantization=declared)


def test_a_template_counts_by_its_text_wherever_it_is_kept() -> None:
    config = References({Reference("ConfigMap", "c"): {"data": {"k": "text"}}})
    secret = References({Reference("Secret", "s"): {"data": {"k": "dGV4dA=="}}})
    inline = digest(chatTemplate={"inline": "text"})
    assert digest(references=config, chatTemplate={"configMapKeyRef": {"name": "c", "key": "k"}}) == inline
    assert digest(references=secret, chatTemplate={"secretKeyRef": {"name": "s", "key": "k"}}) == inline
