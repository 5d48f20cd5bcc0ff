"""A new revision with real pods under steady traffic: nothing is lost, and a wrong one changes nothing for clients."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from e2e.conftest import Tiny
from e2e.support import service
from e2e.support.kube import apply, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
PAUSE_SECONDS = 0.1


@contextmanager
def steady_traffic(name: str, namespace: str) -> Iterator[Counter[str]]:
    """Requests one after the other through the entry Service; counts answers by status, failures by their kind."""
    seen: Counter[str] = Counter()
    stop = threading.Event()

    def ask() -> None:
        with service.through_the_service(name, namespace) as http:
            while not stop.wait(PAUSE_SECONDS):
                try:
                    seen[str(http.post("/v1/chat/completions", json=BODY).status_code)] += 1
                except httpx.HTTPError as error:
                    seen[type(error).__name__] += 1

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join(60)


def serving_revision(name: str, namespace: str) -> str:
    return str(service.read(name, namespace)["status"]["serving"]["revision"])


def is_settled(name: str, namespace: str) -> bool:
    """Ready, and nothing of the rollout is left to do: the old pods have drained and are gone."""
    resource = service.is_ready(name, namespace)
    return resource is not None and resource["status"]["rollout"]["phase"] == "Complete"


def test_update_loses_no_request(namespace: str, applied: str, tiny: Tiny) -> None:
    """kserve#4855, argo-rollouts#4390: requests that met no pod, or one that was leaving."""
    service.wait_ready(applied, namespace)
    first = serving_revision(applied, namespace)
    with steady_traffic(applied, namespace) as seen:
        eventually(lambda: seen["200"] >= 10, timeout=60, what="traffic flows")
        apply(tiny.manifest(applied, limits={"maxQueued": 77}), namespace=namespace)
        eventually(lambda: is_settled(applied, namespace), timeout=240, what="the new revision serves alone")
    assert serving_revision(applied, namespace) != first
    assert set(seen) == {"200"}, seen


@pytest.mark.req("R127")
def test_wrong_update_changes_nothing_for_clients(namespace: str, applied: str, tiny: Tiny) -> None:
    """LLMKube#1767: another engine setting than the approved one; the approved pods go on."""
    service.wait_ready(applied, namespace)
    first = serving_revision(applied, namespace)
    with steady_traffic(applied, namespace) as seen:
        eventually(lambda: seen["200"] >= 10, timeout=60, what="traffic flows")
        engine = {**tiny.service["spec"]["engine"], "maxBatchedTokens": 96}
        apply(tiny.manifest(applied, engine=engine), namespace=namespace)
        eventually(
            lambda: service.reason_of(applied, namespace) == "FlagsMismatch", timeout=240, what="the refusal is told"
        )
        assert service.reason_of(applied, namespace, "Available") == "Reconciled"
        assert serving_revision(applied, namespace) == first
        apply(tiny.manifest(applied), namespace=namespace)
        eventually(lambda: is_settled(applied, namespace), timeout=120, what="the candidate is gone")
    assert serving_revision(applied, namespace) == first
    assert set(seen) == {"200"}, seen
