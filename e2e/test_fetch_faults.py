"""Every way a fetch can fail, with a real pod each: the CR says the reason of its own and a sentence to act on.

One hub plays the faults, a repository for each (the same tiny model). All services run side by side, so the table costs what its slowest
line does. A service gets one fault, which never ends: what ends is cured, and shown elsewhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e.cluster.lifecycle import Context
from e2e.conftest import Tiny
from e2e.support import service, sources
from e2e.support.kube import apply, eventually, get
from tests.support import hub

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAMESPACE = "e2e-faults"
HUB = f"http://hub.{NAMESPACE}.svc"
PRIVATE_HUB = f"http://hub-private.{NAMESPACE}.svc"
# A connection that says nothing for so long is dropped: five times, before that is the reason.
STALL_SECONDS = 1


@dataclass(frozen=True)
class Case:
    """What the hub does with ``config.json`` of the repository ``faults/NAME``, and what the CR has to say about it: the reason, and in
    its sentence what failed, where, and what to do."""

    name: str
    reason: str
    says: tuple[str, ...]
    fault: dict[str, Any] = field(default_factory=dict)
    download: dict[str, Any] = field(default_factory=dict)
    revision: str | None = None


CASES = (
    Case("refused-401", "DownloadUnauthorized", ("refuses config.json", "status 401", "credentials in the Secret"), {"status": 401}),
    Case("refused-403", "DownloadUnauthorized", ("refuses config.json", "status 403", "credentials in the Secret"), {"status": 403}),
    Case("gone-404", "DownloadNotFound", ("has no config.json", "check the name and the revision"), {"status": 404}),
    Case("no-commit", "DownloadNotFound", ("has no revision", "0" * 40), revision="0" * 40),
    Case(
        "no-token",
        "DownloadNotFound",
        ("hub-private", "has no repository faults/no-token", "the Secret has no token"),
        download={"hubEndpoint": PRIVATE_HUB},
    ),
    Case(
        "limited-429",
        "DownloadRateLimited",
        ("fewer requests while fetching config.json", "give it a token", "gave up after 5 attempts"),
        {"status": 429, "headers": {"Retry-After": "1"}},
    ),
    Case("broken-503", "DownloadFailed", ("config.json with status 503", "is in trouble", "after 5 attempts"), {"status": 503}),
    Case("cut", "DownloadTruncated", ("closed the connection", "proxy or mirror", "after 5 attempts"), {"cut": 1}),
    Case("wrong-byte", "DownloadCorrupt", ("config.json is git:", "the source says git:", "mirror"), {"flip": 0}),
    Case(
        "silent",
        "DownloadStalled",
        ("sent nothing", "stallSeconds", "after 5 attempts"),
        {"stall": 3600.0},
        download={"stallSeconds": STALL_SECONDS},
    ),
    Case("too-small", "DiskFull", ("left", "enlarge it"), download={"cache": {"emptyDir": {"sizeLimit": "256Ki"}}}),
    Case(
        "login-page",
        "DownloadFailed",
        ("answers config.json with a web page", "a login or a proxy"),
        {"status": 200, "body": "<html>Please log in</html>", "headers": {"Content-Type": "text/html"}},
    ),
    Case(
        "no-such-host",
        "DownloadFailed",
        ("nowhere.invalid cannot be reached", "check the endpoint"),
        download={"hubEndpoint": "http://nowhere.invalid"},
    ),
)  # fmt: skip


def faults() -> list[dict[str, Any]]:
    """As the hub takes them."""
    return [{"path": f"/faults/{case.name}/resolve/*/config.json", **case.fault} for case in CASES if case.fault]


def describe(case: Case, tiny: Tiny) -> dict[str, Any]:
    manifest = tiny.manifest(case.name, download={"hubEndpoint": HUB, **case.download})
    revision = case.revision or hub.commit_of(tiny.folder)
    manifest["spec"]["model"] |= {"uri": f"hf://faults/{case.name}", "revision": revision}
    return manifest


@pytest.fixture(scope="module")
def failing(context: Context, tiny: Tiny) -> Iterator[str]:
    """All services of the table at once, in a namespace of their own."""
    image = sources.server_image(context)
    models = {f"faults/{case.name}": tiny.folder for case in CASES}
    with sources.namespace_of_its_own(NAMESPACE):
        apply(
            sources.describe_programs(faults()),
            tiny.record_map("tiny-release"),
            *sources.describe_hub(image, "hub", models, "--faults", "/program/tests/support/faults.json"),
            *sources.describe_hub(image, "hub-private", models, "--token", "hf_e2e0secret0token"),
            namespace=NAMESPACE,
        )
        sources.wait_for_places(NAMESPACE, "hub", "hub-private")
        apply(*(describe(case, tiny) for case in CASES), namespace=NAMESPACE)
        yield NAMESPACE


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cr_says_why_a_fetch_fails(failing: str, case: Case) -> None:
    message = sources.wait_reason(case.name, failing, case.reason)
    says = (*case.says, f"faults/{case.name}")
    assert [part for part in says if part not in message] == [], message
    assert service.ready_endpoints(case.name, failing) == []


def test_the_reasons_stand_while_the_kubelet_tries_again(failing: str) -> None:
    """Not a crash loop: what the next attempt will meet is what the last one told."""

    def all_tried_again() -> bool:
        pods = get("pods", namespace=failing, selector="serving.pratique.dev/service")
        statuses = [status for pod in pods for status in pod["status"].get("initContainerStatuses", ())]
        return len(statuses) == len(CASES) and all(status["restartCount"] >= 1 for status in statuses)

    eventually(all_tried_again, timeout=120, what="every fetch was tried again")
    reasons = {case.name: service.reason_of(case.name, failing) for case in CASES}
    assert reasons == {case.name: case.reason for case in CASES}
