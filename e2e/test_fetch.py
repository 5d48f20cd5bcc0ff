"""A source that has to be fetched: from a hub in the cluster into a cache volume, to a pod that proves its release.

The hub is our own (tests/support/hub.py), run by the server image's Python in pods of the cluster; it serves the tiny model. One hub is
private, one is slow. What can go wrong is in test_fetch_faults.py, registries and buckets in test_fetch_sources.py.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e.cluster.lifecycle import Context
from e2e.conftest import Tiny
from e2e.support import service, sources
from e2e.support.kube import apply, eventually, get, kubectl
from pratique_contract.record import ReleaseRecord
from tests.support import hub

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAMESPACE = "e2e-fetch"
REPOSITORY = "e2e/tiny"
TOKEN = "hf_e2e0secret0token"
SLOW_BYTES_PER_SECOND = 15_000  # 40 s for the tiny model


@dataclass(frozen=True)
class Fetched:
    """The tiny model as a repository: its commit, its record under that name, and the service's manifest."""

    commit: str
    record: ReleaseRecord
    service: dict[str, Any] = field(hash=False)

    def manifest(self, name: str, *, hub_name: str = "hub", revision: str | None = None, **spec: Any) -> dict[str, Any]:
        """The service under another name, at another hub or revision, with some fields of its spec replaced."""
        manifest: dict[str, Any] = json.loads(json.dumps(self.service))
        manifest["metadata"]["name"] = name
        manifest["spec"]["model"]["revision"] = revision or self.commit
        manifest["spec"]["download"]["hubEndpoint"] = f"http://{hub_name}.{NAMESPACE}.svc"
        manifest["spec"] |= spec
        return manifest


@pytest.fixture(scope="module")
def fetched(context: Context, tiny: Tiny) -> Fetched:
    commit = hub.commit_of(tiny.folder)
    manifest, record = sources.record_from(
        context, tiny, name="fetched", model={"uri": f"hf://{REPOSITORY}", "revision": commit}
    )
    manifest["spec"]["download"] = {"cache": {"claimName": "models"}, "credentialsSecretRef": {"name": "hub-token"}}
    return Fetched(commit=commit, record=record, service=manifest)


@pytest.fixture(scope="module")
def hubs(context: Context, tiny: Tiny, fetched: Fetched) -> Iterator[str]:
    """Two hubs, a claim for the cache, the Secret and the record in a namespace of their own."""
    image, models = sources.server_image(context), {REPOSITORY: tiny.folder}
    with sources.namespace_of_its_own(NAMESPACE):
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        apply(
            sources.describe_programs(),
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub-token"}, "stringData": {"token": TOKEN}},
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": claim},
            tiny.record_map("fetched-release", fetched.record),
            *sources.describe_hub(image, "hub", models, "--token", TOKEN),
            *sources.describe_hub(image, "hub-slow", models, "--rate", str(SLOW_BYTES_PER_SECOND)),
            namespace=NAMESPACE,
        )
        sources.wait_for_places(NAMESPACE, "hub", "hub-slow")
        yield NAMESPACE


def fetch_logs(name: str) -> list[str]:
    """What the fetching containers of a service's pods said."""
    pods = get("pods", namespace=NAMESPACE, selector=f"serving.pratique.dev/service={name}")
    return [kubectl("logs", pod["metadata"]["name"], "-c", "fetch", "-n", NAMESPACE) for pod in pods]


def test_two_pods_share_one_fetch_prove_their_release_and_answer(hubs: str, fetched: Fetched) -> None:
    apply(fetched.manifest("fetched", replicas=2), namespace=hubs)
    service.wait_ready("fetched", hubs, timeout=300)
    logs = fetch_logs("fetched")
    assert len(logs) == 2
    assert sum('"message": "Fetched hf://' in log for log in logs) == 1
    assert all("Fetched everything" in log for log in logs)
    assert not any(TOKEN in log for log in logs)
    with service.openai_client("fetched", hubs) as api:
        answer = api.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=4, temperature=0
        )
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.system_fingerprint == fetched.record.fingerprint


def test_the_serving_container_has_neither_credentials_nor_a_writable_cache(hubs: str, fetched: Fetched) -> None:
    apply(fetched.manifest("apart"), namespace=hubs)
    (pod,) = eventually(
        lambda: get("pods", namespace=hubs, selector="serving.pratique.dev/service=apart"), timeout=60, what="a pod"
    )
    (server,) = pod["spec"]["containers"]
    mounts = {mount["mountPath"]: mount for mount in server["volumeMounts"]}
    assert not any("credentials" in path for path in mounts)
    assert all(mount.get("readOnly") for path, mount in mounts.items() if path.startswith("/models"))
    kubectl("delete", "psvc", "apart", "-n", hubs)


def test_the_cr_says_how_far_a_download_is(hubs: str, fetched: Fetched) -> None:
    download = {"hubEndpoint": f"http://hub-slow.{NAMESPACE}.svc"}  # into an emptyDir: nothing is there yet
    apply(fetched.manifest("slow", download=download), namespace=hubs)
    message = sources.wait_reason("slow", hubs, "Downloading")
    eventually(
        lambda: "%" in sources.wait_reason("slow", hubs, "Downloading"),
        timeout=60,
        what=f"a percentage; first was: {message}",
    )
    kubectl("delete", "psvc", "slow", "-n", hubs)
