"""The life of the kind cluster: configuration, creation, checks, return after a restart, deletion."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from e2e.cluster import dns, pins
from e2e.cluster.content import write_atomically
from e2e.cluster.engine import Engine
from e2e.cluster.errors import ClusterError, CommandError
from e2e.cluster.machine import Machine
from e2e.cluster.progress import Progress, output, run, succeeds
from e2e.cluster.settings import NODE_PORTS, Settings

DNS_NAME = "kubernetes.default.svc.cluster.local"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
CREATE_WAIT_S = 180
READY_WAIT_S = 150.0
_OBSERVE = ("get", "nodes,deployments.apps", "--all-namespaces", "-o", "json")
_NEEDED = {"coredns": "CoreDNS", "local-path-provisioner": "the storage provisioner"}


@dataclass(frozen=True)
class Record:
    """What was created, kept beside the kubeconfig so that later commands talk to the right engine."""

    image: str
    private_engine: bool
    api_port: int
    host_ports: tuple[int, ...]

    def save(self, path: Path) -> None:
        """Write it."""
        write_atomically(path, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> Record | None:
        """Read it; None when there is no readable record."""
        try:
            fields = json.loads(path.read_text())
            return cls(**(fields | {"host_ports": tuple(fields["host_ports"])}))
        except (OSError, ValueError, TypeError, KeyError):
            return None


def record_path(settings: Settings) -> Path:
    """Where the record is."""
    return settings.cache / "cluster.json"


def configuration(settings: Settings, *, api_port: int, machine: Machine) -> dict[str, Any]:
    """kind's configuration: one node, everything bound to 127.0.0.1."""
    ports = [
        {"containerPort": node, "hostPort": host, "listenAddress": "127.0.0.1", "protocol": "TCP"}
        for node, host in zip(NODE_PORTS, settings.host_ports, strict=True)
    ]
    models = {"hostPath": str(settings.models), "containerPath": pins.NODE_MODELS, "readOnly": False}
    patches = []
    if machine.cgroup == 1:
        # From 1.35 on a kubelet refuses cgroup v1 unless told otherwise; older ones take the field as well.
        patches.append("kind: KubeletConfiguration\nfailCgroupV1: false\n")
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": pins.CLUSTER,
        "networking": {"ipFamily": "ipv4", "apiServerAddress": "127.0.0.1", "apiServerPort": api_port},
        "nodes": [{"role": "control-plane", "extraPortMappings": ports, "extraMounts": [models]}],
        "kubeadmConfigPatches": patches,
    }


class Kind:
    """kind, kubectl and the engine, for one cluster."""

    def __init__(self, settings: Settings, *, engine: Engine, machine: Machine, tools: Path) -> None:
        self._settings = settings
        self._engine = engine
        self._machine = machine
        path = f"{tools}:{engine.path}"
        self._environment = dict(engine.environment, PATH=path, KUBECONFIG=str(settings.kubeconfig))
        self._log = settings.logs / "kind.log"

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment for programs that talk to the cluster."""
        return self._environment

    def kubectl(self, *arguments: str, timeout_s: float = 60.0) -> str:
        """Standard output of kubectl."""
        return output(["kubectl", *arguments], env=self._environment, timeout_s=timeout_s)

    def create(self, image: str, *, api_port: int, progress: Progress) -> None:
        """Create the cluster; a failed one is removed, its logs stay."""
        self._settings.models.mkdir(parents=True, exist_ok=True)
        path = self._settings.cache / "kind.json"
        rendered = configuration(self._settings, api_port=api_port, machine=self._machine)
        write_atomically(path, json.dumps(rendered, indent=2) + "\n")
        with progress.step(f"Creating cluster {pins.CLUSTER}", usual_s=30):
            command = ["kind", "create", "cluster", "--image", image, "--config", str(path), "--retain"]
            command += ["--wait", f"{CREATE_WAIT_S}s", "--kubeconfig", str(self._settings.kubeconfig)]
            try:
                run(command, log=self._log, env=self._environment)
            except CommandError:
                with contextlib.suppress(CommandError):
                    logs = str(self._settings.logs / "kind-export")
                    run(["kind", "export", "logs", logs, "--name", pins.CLUSTER], log=self._log, env=self._environment)
                self.delete()
                raise

    def start(self, *, progress: Progress) -> bool:
        """Bring a stopped node container back; False when the cluster does not answer afterwards."""
        with progress.step("Starting the node container again", usual_s=20), contextlib.suppress(ClusterError):
            self._engine.docker("start", pins.NODE)
            self._wait_for_api()
            self._wait_for_kubelet()
            return True
        return False

    def _wait_for_kubelet(self) -> None:
        """Until the kubelet has told what became of each pod: till then pods and whatever reads them show the state from before."""
        started = self._engine.docker("container", "inspect", "--format", "{{.State.StartedAt}}", pins.NODE).strip()
        deadline = time.monotonic() + READY_WAIT_S
        while untold := untold_since(
            started, json.loads(self.kubectl("get", "pods", "--all-namespaces", "-o", "json"))["items"]
        ):
            if time.monotonic() > deadline:
                raise ClusterError(f"the kubelet says nothing about {', '.join(untold[:3])}")
            time.sleep(0.5)

    def _wait_for_api(self) -> None:
        deadline = time.monotonic() + READY_WAIT_S
        while not succeeds(["kubectl", "get", "--raw", "/readyz"], env=self._environment, timeout_s=10):
            if time.monotonic() > deadline:
                raise CommandError(
                    command="kubectl get --raw /readyz", code=1, log=None, tail="the API does not answer"
                )
            time.sleep(1)

    def delete(self) -> None:
        """Delete the cluster and its kubeconfig."""
        command = ["kind", "delete", "cluster", "--name", pins.CLUSTER, "--kubeconfig", str(self._settings.kubeconfig)]
        run(command, log=self._log, env=self._environment)
        self._settings.kubeconfig.unlink(missing_ok=True)

    def healthy(self) -> bool:
        """One quick look: the API answers, the node is Ready, names and storage are available."""
        if self._engine.container_state(pins.NODE) != "running":
            return False
        try:
            found = json.loads(self.kubectl(*_OBSERVE, timeout_s=10))
        except (CommandError, ValueError):
            return False
        return not problems(found["items"])

    def verify(self, *, progress: Progress) -> None:
        """Wait until the cluster serves. A Ready node proves little: names must resolve through a service address,
        which needs kube-proxy's rules, and claims need a default StorageClass."""
        deadline = time.monotonic() + READY_WAIT_S
        with progress.step("Waiting for node, names and storage", usual_s=10):
            while True:
                problem = self._problem()
                if problem is None:
                    return
                if time.monotonic() > deadline:
                    raise ClusterError(f"the cluster is up but {problem}\n{self._proxy_log()}")
                time.sleep(0.5)

    def _problem(self) -> str | None:
        try:
            found = json.loads(self.kubectl(*_OBSERVE))
            classes = json.loads(self.kubectl("get", "storageclasses", "-o", "json"))
            server = self.kubectl("get", "service", "kube-dns", "-n", "kube-system", "-o", "jsonpath={.spec.clusterIP}")
        except CommandError as error:
            return str(error)
        first = next(iter(problems(found["items"])), None)
        if first is not None:
            return first
        if not has_default_class(classes["items"]):
            return "there is no default StorageClass"
        if not self._resolves(server):
            return f"{DNS_NAME} does not resolve through the service address {server} (kube-proxy's rules?)"
        return None

    def _resolves(self, server: str) -> bool:
        # bash's /dev/tcp: the published node image has no other client that speaks to a port.
        script = f"exec 3<>/dev/tcp/{server}/53 && cat >&3 && timeout 3 head -c 64 <&3"
        command = ["docker", "exec", "--interactive", pins.NODE, "timeout", "5", "bash", "-c", script]
        try:
            finished = subprocess.run(
                command,
                input=dns.query(DNS_NAME),
                capture_output=True,
                env=_merged(self._environment),
                timeout=15,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return dns.resolved(finished.stdout)

    def _proxy_log(self) -> str:
        try:
            return self.kubectl("logs", "-n", "kube-system", "daemonset/kube-proxy", "--tail=15")
        except CommandError as error:
            return str(error)


def untold_since(started: str, pods: list[dict[str, Any]]) -> list[str]:
    """Pods that are said to run in containers older than ``started`` (RFC 3339), when their node did."""

    def is_older(container: dict[str, Any]) -> bool:
        # Kubernetes tells whole seconds, the engine nanoseconds.
        begun: str = container["state"].get("running", {"startedAt": started})["startedAt"]
        return begun[:19] < started[:19]

    return [
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for pod in pods
        if any(is_older(container) for container in pod["status"].get("containerStatuses", []))
    ]


def problems(items: list[dict[str, Any]]) -> list[str]:
    """What is wrong, from the nodes and deployments of the cluster; empty when all is well."""
    found = []
    nodes = [item for item in items if item["kind"] == "Node"]
    if not nodes:
        found.append("there is no node")
    for node in nodes:
        conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", [])}
        if conditions.get("Ready") != "True":
            found.append(f"node {node['metadata']['name']} is not Ready")
    available = {
        item["metadata"]["name"]: item["status"].get("availableReplicas", 0)
        for item in items
        if item["kind"] == "Deployment"
    }
    return found + [f"{title} is not available" for name, title in _NEEDED.items() if not available.get(name)]


def has_default_class(items: list[dict[str, Any]]) -> bool:
    """Whether one of the StorageClasses is the default."""
    return any((item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true" for item in items)


def fetch_kubectl(engine: Engine, tools: Path) -> None:
    """Copy kubectl out of the node when the machine has none: it is the version of the cluster."""
    target = tools / "kubectl"
    if target.exists() or shutil.which("kubectl"):
        return
    tools.mkdir(parents=True, exist_ok=True)
    engine.docker("cp", f"{pins.NODE}:/usr/bin/kubectl", str(target))


def _merged(extra: Mapping[str, str]) -> dict[str, str]:
    return dict(os.environ, **extra)
