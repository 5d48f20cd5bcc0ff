"""Every single field of the spec, to its last leaf: whether it can change a pod, and then it is in the revision, is written down here.

A field that somebody adds and forgets to carry to the pod fails this file: it would be accepted and do nothing, or change what pods
are without replacing them.
"""

import base64
import json
from collections.abc import Iterator
from typing import Any, Final, get_args

import pytest

from pratique_contract.model import ContractModel
from pratique_operator.api.types import InferenceServiceSpec, parse_spec
from pratique_operator.config import OperatorConfig
from pratique_operator.desired.revision import compute_target
from pratique_operator.release.references import References, required_references
from tests.support.releases import make_record

CONFIG = OperatorConfig(server_image="registry/server:1", allow_file_sources=True)
RECORD, OTHER_RECORD = (
    make_record(),
    make_record(golden=make_record().golden.model_copy(update={"cases": make_record().golden.cases[1:]})),
)
HUB: Final = {"model.uri": "hf://owner/name", "model.revision": "a" * 40}
ADAPTER: Final = {"model.adapters.name": "a", "model.adapters.uri": "file:///models/a"}
KEEP: Final = {"quantization.method": "Int8WeightOnly"}
TOLERATION: Final = {"template.spec.tolerations.key": "k", "template.spec.tolerations.effect": "NoExecute"}
ENV: Final = {"template.spec.env.name": "A"}
# Paths below which there is one item of a list.
VOLUMES: Final = "template.spec.volumes"
LISTS: Final = (
    *("model.adapters", "template.spec.tolerations", "template.spec.env", "template.spec.imagePullSecrets"),
    *(VOLUMES, f"{VOLUMES}.configMap.items", f"{VOLUMES}.secret.items", "template.spec.volumeMounts"),
)
VOLUME: Final = {f"{VOLUMES}.name": "v"}
MOUNTED: Final = {
    **VOLUME,
    f"{VOLUMES}.emptyDir.sizeLimit": "1Gi",
    "template.spec.volumeMounts.name": "v",
    "template.spec.volumeMounts.mountPath": "/mnt/v",
}
ITEM: Final = {
    kind: {
        **VOLUME,
        f"{VOLUMES}.{kind}.{name}": "one",
        f"{VOLUMES}.{kind}.items.key": "k",
        f"{VOLUMES}.{kind}.items.path": "p",
    }
    for kind, name in (("configMap", "name"), ("secret", "secretName"))
}

# Field → two values that give two revisions, and what has to stand beside them.
POD_AFFECTING: Final[dict[str, tuple[Any, Any, dict[str, Any]]]] = {
    "model.uri": ("file:///models/x", "file:///models/y", {}),
    "model.revision": ("a" * 40, "b" * 40, {}),
    "model.name": (None, "n", {}),
    "model.trustRemoteCode": (None, True, {}),
    "model.adapters.name": ("a", "b", ADAPTER),
    "model.adapters.uri": ("file:///models/a", "file:///models/b", ADAPTER),
    "model.adapters.revision": ("a" * 40, "b" * 40, ADAPTER),
    "tokenizer.uri": ("file:///models/t", "file:///models/u", {}),
    "tokenizer.revision": ("a" * 40, "b" * 40, {"tokenizer.uri": "file:///models/t"}),
    "chatTemplate.inline": ("x", "y", {}),
    "chatTemplate.configMapKeyRef.name": ("one", "two", {"chatTemplate.configMapKeyRef.key": "k"}),
    "chatTemplate.configMapKeyRef.key": ("k", "l", {"chatTemplate.configMapKeyRef.name": "one"}),
    "chatTemplate.secretKeyRef.name": ("one", "two", {"chatTemplate.secretKeyRef.key": "k"}),
    "chatTemplate.secretKeyRef.key": ("k", "l", {"chatTemplate.secretKeyRef.name": "one"}),
    "quantization.method": (None, "Int8WeightOnly", {}),
    "quantization.dtype": ("BF16", "FP32", {}),
    "quantization.config.keep": (["a"], ["b"], KEEP),
    "engine.name": (None, "Naive", {}),
    "engine.image": ("r/s:1", "r/s:2", {}),
    "engine.maxModelLen": (100, 101, {}),
    "engine.maxNumSeqs": (3, 4, {}),
    "engine.maxBatchedTokens": (100, 101, {}),
    "engine.kvCache.blocks": (9, 10, {}),
    "engine.kvCache.memory": ("1Gi", "2Gi", {}),
    "engine.kvCache.blockSize": (16, 32, {"engine.kvCache.blocks": 9}),
    "engine.kvCache.dtype": ("BF16", "FP32", {"engine.kvCache.blocks": 9}),
    "engine.args": (["--a=1"], ["--a=2"], {}),
    "release.recordRef.name": ("record", "other-record", {"release.fingerprint": RECORD.fingerprint}),
    "release.policy": (None, "TrustFirst", {}),
    "release.reverify.intervalSeconds": (5, 6, {}),
    "release.reverify.failures": (2, 4, {}),
    "release.reverify.onFailure": (None, "Unready", {}),
    "download.cache.claimName": ("c", "d", HUB),
    "download.cache.hostPath": ("/a", "/b", HUB),
    "download.cache.emptyDir.sizeLimit": ("1Gi", "2Gi", HUB),
    "download.credentialsSecretRef.name": ("s", "t", HUB),
    "download.hubEndpoint": ("https://a", "https://b", HUB),
    "download.s3Endpoint": ("https://a", "https://b", HUB),
    "download.s3Region": ("eu", "us", HUB),
    "download.connections": (2, 3, HUB),
    "download.stallSeconds": (5, 6, HUB),
    "auth.apiKeySecretRef.name": ("one", "two", {}),
    "limits.maxBodyBytes": (10, 11, {}),
    "limits.maxPromptTokens": (10, 11, {}),
    "limits.maxOutputTokens": (10, 11, {}),
    "limits.maxQueued": (10, 11, {}),
    "limits.maxQueuedTokens": (10, 11, {}),
    "limits.requestTimeoutSeconds": (10, 11, {}),
    "startup.timeoutSeconds": (50, 100, {}),
    "startup.probeTimeoutSeconds": (5, 6, {}),
    "drain.preStopSeconds": (1, 2, {}),
    "drain.deadlineSeconds": (1, 2, {}),
    "template.metadata.labels": ({"a": "b"}, {"a": "c"}, {}),
    "template.metadata.annotations": ({"a": "b"}, {"a": "c"}, {}),
    "template.spec.resources.requests": ({"cpu": "1"}, {"cpu": "2"}, {}),
    "template.spec.resources.limits": ({"cpu": "1"}, {"cpu": "2"}, {}),
    "template.spec.nodeSelector": ({"a": "b"}, {"a": "c"}, {}),
    "template.spec.tolerations.key": ("k", "l", TOLERATION),
    "template.spec.tolerations.operator": (None, "Exists", TOLERATION),
    "template.spec.tolerations.value": ("v", "w", TOLERATION),
    "template.spec.tolerations.effect": ("NoExecute", "NoSchedule", TOLERATION),
    "template.spec.tolerations.tolerationSeconds": (5, 6, TOLERATION),
    "template.spec.affinity": ({"nodeAffinity": {}}, {"podAffinity": {}}, {}),
    "template.spec.topologySpreadConstraints": ([{"maxSkew": 1}], [{"maxSkew": 2}], {}),
    "template.spec.priorityClassName": ("a", "b", {}),
    "template.spec.runtimeClassName": ("a", "b", {}),
    "template.spec.env.name": ("A", "B", {"template.spec.env.value": "1"}),
    "template.spec.env.value": ("1", "2", ENV),
    "template.spec.env.valueFrom.configMapKeyRef.name": (
        "one", "two", {**ENV, "template.spec.env.valueFrom.configMapKeyRef.key": "k"}
    ),
    "template.spec.env.valueFrom.configMapKeyRef.key": (
        "k", "l", {**ENV, "template.spec.env.valueFrom.configMapKeyRef.name": "one"}
    ),
    "template.spec.env.valueFrom.secretKeyRef.name": (
        "one", "two", {**ENV, "template.spec.env.valueFrom.secretKeyRef.key": "k"}
    ),
    "template.spec.env.valueFrom.secretKeyRef.key": (
        "k", "l", {**ENV, "template.spec.env.valueFrom.secretKeyRef.name": "one"}
    ),
    "template.spec.volumes.name": ("v", "w", {"template.spec.volumes.emptyDir.sizeLimit": "1Gi"}),
    "template.spec.volumes.configMap.name": ("one", "two", VOLUME),
    "template.spec.volumes.configMap.items.key": ("k", "l", ITEM["configMap"]),
    "template.spec.volumes.configMap.items.path": ("p", "q", ITEM["configMap"]),
    "template.spec.volumes.secret.secretName": ("one", "two", VOLUME),
    "template.spec.volumes.secret.items.key": ("k", "l", ITEM["secret"]),
    "template.spec.volumes.secret.items.path": ("p", "q", ITEM["secret"]),
    "template.spec.volumes.emptyDir.medium": (None, "Memory", {**VOLUME, "template.spec.volumes.emptyDir.sizeLimit": "1Gi"}),
    "template.spec.volumes.emptyDir.sizeLimit": ("1Gi", "2Gi", VOLUME),
    "template.spec.volumes.persistentVolumeClaim.claimName": ("a", "b", VOLUME),
    "template.spec.volumes.persistentVolumeClaim.readOnly": (
        None, True, {**VOLUME, "template.spec.volumes.persistentVolumeClaim.claimName": "a"}
    ),
    "template.spec.volumeMounts.mountPath": ("/mnt/a", "/mnt/b", MOUNTED),
    "template.spec.volumeMounts.subPath": ("a", "b", MOUNTED),
    "template.spec.volumeMounts.readOnly": (None, True, MOUNTED),
    "template.spec.imagePullSecrets.name": ("a", "b", {}),
    "template.spec.serviceAccountName": ("a", "b", {}),
}  # fmt: skip
CONFIG_KEY: Final = {"release.signature.configMapKeyRef.name": "keys", "release.signature.configMapKeyRef.key": "k"}
SECRET_KEY: Final = {"release.signature.secretKeyRef.name": "keys", "release.signature.secretKeyRef.key": "k"}
# What acts elsewhere and must roll no pod: the operator's own checks and the planner.
NOT_POD_AFFECTING: Final[dict[str, tuple[Any, Any, dict[str, Any]]]] = {
    "release.reviewPolicy": (None, "Block", {}),
    "replicas": (1, 2, {}),
    "rollout.strategy": (None, "Recreate", {}),
    "rollout.progressDeadlineSeconds": (500, 501, {}),
    "rollout.revisionHistoryLimit": (1, 2, {}),
    "rollout.paused": (None, True, {}),
}
# Each with the test that shows what it does to pods.
ELSEWHERE: Final = {
    "model.adapters.mode": "one value only",
    "template.spec.volumeMounts.name": "tests/unit/operator/test_volumes.py: the mount of another volume is another revision",
    "release.fingerprint": "tests/unit/operator/test_trust.py: approving what was recorded restarts no pod",
    **dict.fromkeys((*CONFIG_KEY, *SECRET_KEY), "tests/unit/operator/test_signatures.py: another key restarts no pod"),
}


def leaves(model: type[ContractModel], path: str = "") -> Iterator[str]:
    for field in model.model_fields.values():
        inner = list(_models(field.annotation))
        if not inner:
            yield f"{path}{field.alias}"
        for found in inner:
            yield from leaves(found, f"{path}{field.alias}.")


def _models(annotation: Any) -> Iterator[type[ContractModel]]:
    if isinstance(annotation, type) and issubclass(annotation, ContractModel):
        yield annotation
        return
    for argument in get_args(annotation):
        yield from _models(argument)


def build(fields: dict[str, Any]) -> dict[str, Any]:
    """The nested spec of flat paths."""
    spec: dict[str, Any] = {"model": {"uri": "file:///models/x"}}
    for path, value in fields.items():
        if value is None:
            continue
        place, *names = path.split(".")
        at, walked = spec, place
        for name in names:
            inner = at.setdefault(place, [{}] if walked in LISTS else {})
            at = inner[0] if walked in LISTS else inner
            place, walked = name, f"{walked}.{name}"
        at[place] = value
    return spec


def revision(fields: dict[str, Any]) -> str:
    spec = parse_spec(build(fields))
    found = {}
    for reference in required_references(spec):
        record = OTHER_RECORD if reference.name == "other-record" else RECORD
        texts = {key: base64.b64encode(f"{reference.name} {key}".encode()).decode() for key in ("k", "l")}
        found[reference] = {"data": {"record.json": record.to_json(), **texts}}
    return compute_target(spec, References(found), service="svc", namespace="ns", config=CONFIG).revision


def test_every_field_is_on_one_of_the_lists() -> None:
    named = [*POD_AFFECTING, *NOT_POD_AFFECTING, *ELSEWHERE]
    assert sorted(named) == sorted(leaves(InferenceServiceSpec))


@pytest.mark.parametrize("field", POD_AFFECTING)
def test_a_changed_field_is_another_revision_and_the_same_value_is_not(field: str) -> None:
    """kserve#3683, production-stack, kubeai#219: a change that rolled nothing."""
    one, other, beside = POD_AFFECTING[field]
    revisions = [revision({**beside, field: value}) for value in (one, other, one)]
    assert revisions[0] == revisions[2]
    assert revisions[0] != revisions[1], json.dumps(build({**beside, field: other}))


@pytest.mark.parametrize("field", NOT_POD_AFFECTING)
def test_a_field_that_acts_elsewhere_keeps_the_pods(field: str) -> None:
    """aibrix#2041: a change that rolled everything."""
    one, other, beside = NOT_POD_AFFECTING[field]
    assert revision({**beside, field: one}) == revision({**beside, field: other})
