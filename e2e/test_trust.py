"""TrustFirst with real pods: the first one is recorded, every later one must match it, and approving it restarts none.

One story, told in one test: each step stands on the one before, and the model is loaded four times in all.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import example
from e2e.conftest import Tiny, node_uri
from e2e.support import service
from e2e.support.kube import apply, condition, eventually, get, kubectl
from tests.support import models, mutations

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAME = "trusting"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
REFUSED_SECONDS_MAX = 180


@pytest.fixture
def volume(tiny: Tiny, namespace: str) -> Iterator[Path]:
    """A folder of this test's own on the node, so that a byte may change under a running service."""
    folder = models.cache_dir() / "models" / "e2e-trust" / namespace
    yield mutations.copy_of(tiny.folder, folder)
    shutil.rmtree(folder, ignore_errors=True)


def trusting(tiny: Tiny, volume: Path, *, replicas: int) -> dict[str, Any]:
    manifest = tiny.manifest(NAME, replicas=replicas, release={"policy": "TrustFirst"})
    manifest["spec"]["model"] = {**manifest["spec"]["model"], "uri": node_uri(volume)}
    return manifest


def pods(namespace: str) -> dict[str, dict[str, Any]]:
    """Pods that are there to stay, by UID."""
    found = get("pods", namespace=namespace, selector=f"serving.pratique.dev/service={NAME}")
    return {pod["metadata"]["uid"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}


def restarts(namespace: str) -> int:
    return sum(
        state["restartCount"] for pod in pods(namespace).values() for state in pod["status"]["containerStatuses"]
    )


def wait_verified(namespace: str, status: str, reason: str) -> str:
    """The message of FingerprintVerified once it says this."""

    def look() -> str | None:
        found = condition(service.read(NAME, namespace), "FingerprintVerified")
        matches = found is not None and (found["status"], found["reason"]) == (status, reason)
        return str(found["message"]) if matches and found is not None else None

    try:
        return eventually(look, timeout=REFUSED_SECONDS_MAX, what=f"FingerprintVerified is {status} {reason}")
    except AssertionError as error:
        raise AssertionError(f"{error}\nstatus: {service.read(NAME, namespace).get('status')}") from error


@pytest.mark.req("R127")
def test_first_pod_is_recorded_later_pods_must_match_and_approval_restarts_none(
    namespace: str, tiny: Tiny, volume: Path
) -> None:
    """LLMKube#1767, LLMKube#619: other bytes at the same place behind a green status, here without any record made beforehand."""
    apply(trusting(tiny, volume, replicas=1), namespace=namespace)
    message = wait_verified(namespace, "Unknown", "RecordedNotApproved")
    recorded = service.read(NAME, namespace)["status"]["recorded"]
    assert recorded["recordRef"] in message
    assert "pratique release approve" in message
    # The same files, flags and image: what a person would have recorded on a desk.
    assert recorded["fingerprint"] == tiny.record.fingerprint

    apply(trusting(tiny, volume, replicas=2), namespace=namespace)
    eventually(lambda: len(service.ready_endpoints(NAME, namespace)) == 2, timeout=180, what="both pods serve")
    with service.through_the_service(NAME, namespace) as http:
        assert {http.post("/v1/chat/completions", json=BODY).status_code for _ in range(6)} == {200}
    assert service.read(NAME, namespace)["status"]["recorded"] == recorded

    mutations.flip_weight_byte(volume)
    gone, stays = pods(namespace)
    kubectl("delete", "pod", "-n", namespace, pods(namespace)[gone]["metadata"]["name"], timeout=120)
    assert "model.safetensors" in wait_verified(namespace, "False", "ModelMismatch")
    assert len(service.ready_endpoints(NAME, namespace)) == 1
    with service.through_the_service(NAME, namespace) as http:
        assert http.post("/v1/chat/completions", json=BODY).status_code == 200

    mutations.replace(volume / "model.safetensors", (tiny.folder / "model.safetensors").read_bytes())
    (refused,) = set(pods(namespace)) - {stays}
    kubectl("delete", "pod", "-n", namespace, pods(namespace)[refused]["metadata"]["name"], timeout=120)
    eventually(lambda: len(service.ready_endpoints(NAME, namespace)) == 2, timeout=180, what="both pods serve again")
    before = set(pods(namespace))
    assert stays in before
    example.pratique("release", "approve", NAME, "-n", namespace, "--fingerprint", recorded["fingerprint"])
    wait_verified(namespace, "True", "Verified")
    service.wait_ready(NAME, namespace)
    assert service.read(NAME, namespace)["status"]["serving"]["approved"]
    assert (set(pods(namespace)), restarts(namespace)) == (before, 0)
