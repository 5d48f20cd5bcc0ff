"""What an operator must survive: restarts, its own absence, changes, deletion. Real controllers, kubelet and garbage collector."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from e2e.conftest import Tiny
from e2e.install import NAMESPACE as OPERATOR_NAMESPACE
from e2e.support import service
from e2e.support.kube import apply, eventually, get, kubectl

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

OPERATOR = "deployment/pratique-operator"


@contextmanager
def operator_down() -> Iterator[None]:
    """The operator scaled to 0 and gone; back and available afterwards."""
    kubectl("scale", OPERATOR, "-n", OPERATOR_NAMESPACE, "--replicas=0")
    eventually(lambda: not get("pods", namespace=OPERATOR_NAMESPACE), timeout=60, what="the operator is gone")
    try:
        yield
    finally:
        kubectl("scale", OPERATOR, "-n", OPERATOR_NAMESPACE, "--replicas=1")
        kubectl("rollout", "status", OPERATOR, "-n", OPERATOR_NAMESPACE, "--timeout=90s", timeout=100)


def versions(namespace: str, name: str) -> dict[str, str]:
    """resourceVersion of the service and of everything it owns, pods excepted (the kubelet writes those)."""
    found = {f"psvc/{name}": service.read(name, namespace)["metadata"]["resourceVersion"]}
    for child in service.children(namespace, name):
        kind, child_name = child.split("/")
        if kind not in ("pods", "endpointslices"):
            found[child] = get(kind, child_name, namespace=namespace)["metadata"]["resourceVersion"]
    return found


def settled(namespace: str, name: str) -> dict[str, str] | None:
    """The versions once they have stood still for five seconds."""
    first = versions(namespace, name)
    time.sleep(5)
    return first if versions(namespace, name) == first else None


def ask(namespace: str, name: str) -> Any:
    with service.openai_client(name, namespace) as api:
        return api.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=4, temperature=0
        )


def test_it_answers_while_the_operator_is_away_and_deletion_leaves_nothing(namespace: str, applied: str) -> None:
    """A finalizer would hang here: kopf#1305, kaito#932."""
    service.wait_ready(applied, namespace)
    with operator_down():
        assert ask(namespace, applied).usage.completion_tokens > 0
        kubectl("delete", "psvc", applied, "-n", namespace, "--timeout=30s")
        eventually(
            lambda: service.children(namespace, applied) == [],
            timeout=90,
            what=f"nothing is left of {service.children(namespace, applied)}",
        )


def test_deletion_with_the_operator_up_leaves_nothing(namespace: str, applied: str) -> None:
    service.wait_ready(applied, namespace)
    kubectl("delete", "psvc", applied, "-n", namespace, "--timeout=30s")
    eventually(lambda: service.children(namespace, applied) == [], timeout=90, what="nothing is left")


def test_a_restart_in_mid_creation_converges(namespace: str, tiny: Tiny) -> None:
    """The operator dies as soon as the first child exists; the next one finishes the work."""
    apply(tiny.record_map("tiny-release"), tiny.manifest("tiny"), namespace=namespace)
    eventually(lambda: service.children(namespace, "tiny") != [], timeout=30, what="a first child", every=0.05)
    kubectl("delete", "pods", "-n", OPERATOR_NAMESPACE, "--all", "--grace-period=0", "--force", "--wait=false")
    service.wait_ready("tiny", namespace, timeout=180)
    assert len(get("deployments", namespace=namespace)) == 1


def test_nothing_is_written_when_nothing_changed(namespace: str, applied: str) -> None:
    """LLMKube#1139, kserve#2232: an operator that rewrites what it wrote. The operator restarts, so every object is seen anew."""
    service.wait_ready(applied, namespace)
    before = eventually(lambda: settled(namespace, applied), timeout=60, what="a pause between writes", every=0.1)
    kubectl("rollout", "restart", OPERATOR, "-n", OPERATOR_NAMESPACE)
    kubectl("rollout", "status", OPERATOR, "-n", OPERATOR_NAMESPACE, "--timeout=90s", timeout=100)
    time.sleep(10)
    assert versions(namespace, applied) == before
    for number in range(3):
        kubectl("annotate", "psvc", applied, "-n", namespace, "--overwrite", f"example.org/touched={number}")
        time.sleep(2)
    touched = versions(namespace, applied)
    assert {**touched, f"psvc/{applied}": None} == {**before, f"psvc/{applied}": None}


def test_a_new_revision_takes_over_only_when_it_is_verified_and_a_broken_one_never(namespace: str, tiny: Tiny) -> None:
    """LLMKube#1767, kubeai#219: a change rolls pods; kserve#4855: the old ones stay until the new are ready."""
    apply(tiny.record_map("tiny-release"), tiny.manifest("tiny"), namespace=namespace)
    first = service.wait_ready("tiny", namespace)["status"]["serving"]["revision"]

    broken = tiny.manifest("tiny", quantization={"dtype": "BF16"})
    apply(broken, namespace=namespace)
    eventually(
        lambda: service.reason_of("tiny", namespace) == "QuantizationMismatch",
        timeout=120,
        what="the change is refused",
    )
    status = service.read("tiny", namespace)["status"]
    assert status["serving"]["revision"] == first
    assert status["candidate"]["revision"] != first
    assert ask(namespace, "tiny").usage.completion_tokens > 0

    changed = tiny.manifest("tiny", limits={"maxQueued": 64})
    apply(changed, namespace=namespace)
    final = service.wait_ready("tiny", namespace, timeout=180)["status"]
    assert final["serving"]["revision"] not in (first, status["candidate"]["revision"])
    assert ask(namespace, "tiny").usage.completion_tokens > 0


def test_scaling_keeps_the_revision_and_every_pod_proves_itself(namespace: str, applied: str) -> None:
    revision = service.wait_ready(applied, namespace)["status"]["serving"]["revision"]
    kubectl("scale", "psvc", applied, "-n", namespace, "--replicas=2")
    scaled = eventually(
        lambda: (
            resource
            if (resource := service.read(applied, namespace))["status"]["serving"].get("verifiedReplicas") == 2
            else None
        ),
        timeout=120,
        what="two verified pods",
    )
    assert scaled["status"]["serving"]["revision"] == revision
    eventually(lambda: len(service.ready_endpoints(applied, namespace)) == 2, timeout=20, what="two endpoints")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": {"uri": "ftp://somewhere/model"}}, "spec.model.uri"),
        ({"replicas": -1}, "spec.replicas"),
        ({"engine": {"args": ["--model=other"]}}, "spec.engine.args"),
        ({"engine": {"image": "example.org/server:latest"}}, "spec.engine.image"),
        ({"release": {"fingerprint": "abc"}}, "spec.release.fingerprint"),
        ({"wrong": 1}, "wrong"),
    ],
)
def test_a_bad_resource_is_refused_by_the_api_server_naming_the_field(
    namespace: str, tiny: Tiny, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(RuntimeError, match=field.replace(".", r"\.")):
        apply(tiny.manifest("bad", **change), namespace=namespace)
