"""A source that has to be fetched: from a hub in the cluster into a cache volume, to a pod that proves its release; and every way it fails.

The hub is our own (tests/support/hub.py), run by the server image's Python in pods of the cluster; it serves the tiny model. One hub is
private and right, one answers with a wrong byte, one is slow.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import example
from e2e.cluster.lifecycle import Context
from e2e.cluster.pins import NODE_MODELS
from e2e.conftest import Tiny
from e2e.support import service
from e2e.support.kube import apply, condition, eventually, get, kubectl, run_kubectl
from pratique_contract.record import ReleaseRecord
from tests.support import hub, models

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


def describe_hub(image: str, folder: Path, name: str, *arguments: str) -> list[dict[str, Any]]:
    """Pod and Service of one hub; the model comes from the node, the program from a ConfigMap."""
    source = f"{NODE_MODELS}/{folder.relative_to(models.cache_dir() / 'models')}"
    container = {
        "name": "hub",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "/program/hub.py", "/srv", "--port", "8080", *arguments],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "volumeMounts": [
            {"name": "program", "mountPath": "/program"},
            {"name": "model", "mountPath": f"/srv/{REPOSITORY}", "readOnly": True},
        ],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [
                {"name": "program", "configMap": {"name": "hub-program"}},
                {"name": "model", "hostPath": {"path": source, "type": "Directory"}},
            ],
        },
    }
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    entry = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}}
    return [pod, {**entry, "spec": {"selector": {"app": name}, "ports": ports}}]


@pytest.fixture(scope="module")
def fetched(context: Context, tiny: Tiny) -> Fetched:
    commit = hub.commit_of(tiny.folder)
    manifest = json.loads(json.dumps(tiny.service))
    manifest["metadata"]["name"] = "fetched"
    manifest["spec"]["model"] |= {"uri": f"hf://{REPOSITORY}", "revision": commit}
    manifest["spec"].pop("release", None)
    path = context.settings.cache / "work" / "fetched.yaml"
    path.write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")
    file = example.record(context, service=path, model=tiny.folder, name="fetched")
    record = ReleaseRecord.from_json(file.read_text(encoding="utf-8"))
    manifest["spec"]["release"] = {"fingerprint": record.fingerprint, "recordRef": {"name": "fetched-release"}}
    manifest["spec"]["download"] = {"cache": {"claimName": "models"}, "credentialsSecretRef": {"name": "hub-token"}}
    return Fetched(commit=commit, record=record, service=manifest)


@pytest.fixture(scope="module")
def hubs(context: Context, tiny: Tiny, fetched: Fetched) -> Iterator[str]:
    """Three hubs, a claim for the cache, the Secret and the record in a namespace of their own."""
    image = json.loads((context.settings.cache / "images.json").read_text(encoding="utf-8"))["server"]
    run_kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=120)
    kubectl("create", "namespace", NAMESPACE)
    program = Path(hub.__file__).read_text(encoding="utf-8")
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hub-program"}, "data": {"hub.py": program}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub-token"}, "stringData": {"token": TOKEN}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": claim},
        tiny.record_map("fetched-release", fetched.record),
        *describe_hub(image, tiny.folder, "hub", "--token", TOKEN),
        *describe_hub(image, tiny.folder, "hub-corrupt", "--corrupt", "*/config.json"),
        *describe_hub(image, tiny.folder, "hub-slow", "--rate", str(SLOW_BYTES_PER_SECOND)),
        namespace=NAMESPACE,
    )
    pods = ("pod/hub", "pod/hub-corrupt", "pod/hub-slow")
    kubectl("wait", "--for=condition=Ready", *pods, "-n", NAMESPACE, "--timeout=120s", timeout=150)
    yield NAMESPACE
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def fetch_logs(name: str) -> list[str]:
    """What the fetching containers of a service's pods said."""
    pods = get("pods", namespace=NAMESPACE, selector=f"serving.pratique.dev/service={name}")
    return [kubectl("logs", pod["metadata"]["name"], "-c", "fetch", "-n", NAMESPACE) for pod in pods]


def wait_reason(name: str, reason: str, *, timeout: float = 180.0) -> str:
    """The message with which the service's Ready condition gives the reason."""

    def look() -> str | None:
        ready = condition(service.read(name, NAMESPACE), "Ready")
        return str(ready["message"]) if ready is not None and ready["reason"] == reason else None

    try:
        return eventually(look, timeout=timeout, what=f"{name} says {reason}")
    except AssertionError as error:
        raise AssertionError(f"{error}\nstatus: {service.read(name, NAMESPACE).get('status')}") from error


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


@pytest.mark.parametrize(
    ("name", "changes", "reason", "part"),
    [
        ("no-commit", {"revision": "0" * 40}, "DownloadNotFound", "0" * 40),
        (
            "no-token",
            {"download": {"hubEndpoint": f"http://hub.{NAMESPACE}.svc"}},
            "DownloadNotFound",
            "the Secret has no token",
        ),
        (
            "wrong-byte",
            {"download": {"hubEndpoint": f"http://hub-corrupt.{NAMESPACE}.svc"}},
            "DownloadCorrupt",
            "config.json is git:",
        ),
        (
            "too-small",
            {
                "download": {
                    "hubEndpoint": f"http://hub-slow.{NAMESPACE}.svc",
                    "cache": {"emptyDir": {"sizeLimit": "256Ki"}},
                }
            },
            "DiskFull",
            "enlarge it",
        ),
    ],
)
def test_a_fetch_that_fails_says_why_in_the_cr(
    hubs: str, fetched: Fetched, name: str, changes: dict[str, Any], reason: str, part: str
) -> None:
    apply(fetched.manifest(name, **changes), namespace=hubs)
    assert part in wait_reason(name, reason)
    assert service.ready_endpoints(name, hubs) == []
    kubectl("delete", "psvc", name, "-n", hubs)


def test_the_cr_says_how_far_a_download_is(hubs: str, fetched: Fetched) -> None:
    download = {"hubEndpoint": f"http://hub-slow.{NAMESPACE}.svc"}  # into an emptyDir: nothing is there yet
    apply(fetched.manifest("slow", download=download), namespace=hubs)
    message = wait_reason("slow", "Downloading")
    eventually(
        lambda: "%" in wait_reason("slow", "Downloading"), timeout=60, what=f"a percentage; first was: {message}"
    )
    kubectl("delete", "psvc", "slow", "-n", hubs)
