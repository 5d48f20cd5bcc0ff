"""Places in the cluster that a model is fetched from: hubs, a registry and an S3 server, each a pod and a Service of a test's namespace.

They run in the server's own image, so that nothing has to be pulled: hub and registry are our own programs (tests/support) out of a
ConfigMap, the S3 server is moto out of the model cache, where the node sees it. The models they serve are the node's too.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from e2e import example
from e2e.cluster.lifecycle import Context
from e2e.cluster.pins import NODE_MODELS
from e2e.conftest import Tiny
from e2e.support import service
from e2e.support.kube import condition, eventually, kubectl, run_kubectl
from pratique_contract.record import ReleaseRecord
from tests.support import hub, s3
from tests.support.models import cache_dir

Manifest = dict[str, Any]

PROGRAMS: Final = "programs"
_HUB: Final = ("python3", "-m", "tests.support.hub", "/srv", "--port", "8080")
_REGISTRY: Final = (
    *("python3", "-m", "tests.support.registry", "/srv", "--port", "8080"),
    *("--tls", "/tls/tls.crt", "/tls/tls.key"),
)
_S3: Final = ("python3", "-W", "ignore", "-m", "tests.support.s3_pod", "/srv", "--port", "8080")


def server_image(context: Context) -> str:
    images: dict[str, str] = json.loads((context.settings.cache / "images.json").read_text(encoding="utf-8"))
    return images["server"]


def record_from(context: Context, tiny: Tiny, *, name: str, model: Mapping[str, str]) -> tuple[Manifest, ReleaseRecord]:
    """The tiny model's service with its model at another source, and its record under that source's name (``NAME-release``)."""
    manifest: Manifest = json.loads(json.dumps(tiny.service))
    manifest["metadata"]["name"] = name
    manifest["spec"]["model"] |= model
    manifest["spec"].pop("release", None)
    path = context.settings.cache / "work" / f"{name}.yaml"
    path.write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")
    file = example.record(context, service=path, model=tiny.folder, name=name)
    record = ReleaseRecord.from_json(file.read_text(encoding="utf-8"))
    manifest["spec"]["release"] = {"fingerprint": record.fingerprint, "recordRef": {"name": f"{name}-release"}}
    return manifest, record


@contextmanager
def namespace_of_its_own(name: str) -> Iterator[str]:
    """An empty namespace, also after a run that was stopped; deleted (without waiting) at the end, whatever happens."""
    run_kubectl("delete", "namespace", name, "--ignore-not-found", timeout=120)
    kubectl("create", "namespace", name)
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


def describe_programs(faults: Sequence[Mapping[str, Any]] = ()) -> Manifest:
    """The ConfigMap every place's program comes from. ``faults`` are for hubs that are started with ``--faults``."""
    folder = Path(hub.__file__).parent
    data = {name: (folder / name).read_text(encoding="utf-8") for name in ("hub.py", "registry.py", "s3_pod.py")}
    data["faults.json"] = json.dumps([dict(fault) for fault in faults])
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PROGRAMS}, "data": data}


def describe_hub(image: str, name: str, models: Mapping[str, Path], *arguments: str) -> list[Manifest]:
    """A hub; ``models`` are its repositories."""
    return _describe(image, name, [*_HUB, *arguments], folders=_below_srv(models), port=80)


def describe_registry(image: str, name: str, models: Mapping[str, Path], *arguments: str) -> list[Manifest]:
    """A registry over TLS with the certificate in the Secret ``NAME-tls``; ``models`` are its artifacts."""
    tls = {"name": "tls", "secret": {"secretName": f"{name}-tls"}}
    command = [*_REGISTRY, *arguments]
    return _describe(image, name, command, folders=_below_srv(models), port=443, volume=tls, mounted="/tls")


def describe_s3(image: str, name: str, models: Mapping[str, Path], **environment: str) -> list[Manifest]:
    """A moto server; ``models`` are ``BUCKET/PREFIX``. Its packages are linked into the model cache: that is what the node sees."""
    installed = s3.install()
    visible = cache_dir() / "models" / "e2e-s3" / installed.name
    if not visible.exists():
        partial = visible.with_name(f".{visible.name}.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(installed, partial, copy_function=os.link)
        partial.rename(visible)
    # By its Service's name it would take the first part for a bucket.
    variables = {"AWS_DEFAULT_REGION": "us-east-1", "S3_IGNORE_SUBDOMAIN_BUCKETNAME": "true", **environment}
    folders = {"/moto": visible, **_below_srv(models)}
    return _describe(image, name, list(_S3), folders=folders, port=80, environment=variables)


def _below_srv(models: Mapping[str, Path]) -> dict[str, Path]:
    return {f"/srv/{name}": folder for name, folder in models.items()}


def _describe(
    image: str,
    name: str,
    command: list[str],
    *,
    folders: Mapping[str, Path],
    port: int,
    environment: Mapping[str, str] | None = None,
    volume: Manifest | None = None,
    mounted: str = "",
) -> list[Manifest]:
    """Pod and Service. ``folders`` of the model cache are mounted from the node, read-only."""
    sources = sorted({_on_node(folder) for folder in folders.values()})
    names = {source: f"folder-{number}" for number, source in enumerate(sources)}
    mounts = [{"name": PROGRAMS, "mountPath": "/program/tests/support", "readOnly": True}]
    mounts += [
        {"name": names[_on_node(folder)], "mountPath": path, "readOnly": True} for path, folder in folders.items()
    ]
    volumes: list[Manifest] = [{"name": PROGRAMS, "configMap": {"name": PROGRAMS}}]
    volumes += [{"name": names[source], "hostPath": {"path": source, "type": "Directory"}} for source in names]
    if volume is not None:
        mounts.append({"name": volume["name"], "mountPath": mounted, "readOnly": True})
        volumes.append(volume)
    container = {
        "name": "server",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        # The image names its own packages in this variable; ours come after them.
        "command": ["sh", "-c", 'PYTHONPATH="$PYTHONPATH:/program:/moto" exec "$@"', "sh", *command],
        "env": [{"name": key, "value": value} for key, value in (environment or {}).items()],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "volumeMounts": mounts,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], "volumes": volumes},
    }
    return [pod, describe_entry(name, name, port)]


def describe_entry(name: str, pod: str, port: int) -> Manifest:
    """A Service in front of a place's pod; a second one is another name for it."""
    ports = [{"name": "http", "port": port, "targetPort": "http"}]
    spec = {"selector": {"app": pod}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def _on_node(folder: Path) -> str:
    return f"{NODE_MODELS}/{folder.relative_to(cache_dir() / 'models')}"


def wait_for_places(namespace: str, *names: str) -> None:
    pods = [f"pod/{name}" for name in names]
    kubectl("wait", "--for=condition=Ready", *pods, "-n", namespace, "--timeout=120s", timeout=150)


def wait_reason(name: str, namespace: str, reason: str, *, timeout: float = 180.0) -> str:
    """The message with which the service's Ready condition gives the reason."""

    def look() -> str | None:
        ready = condition(service.read(name, namespace), "Ready")
        return str(ready["message"]) if ready is not None and ready["reason"] == reason else None

    try:
        return eventually(look, timeout=timeout, what=f"{name} says {reason}")
    except AssertionError as error:
        raise AssertionError(f"{error}\nstatus: {service.read(name, namespace).get('status')}") from error
