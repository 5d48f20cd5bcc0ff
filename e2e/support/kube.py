"""The cluster as a test sees it: kubectl for what a person would type, the official client for reading.

Every call has a timeout; every wait polls with a deadline and, when it fails, says what the cluster looked like.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.models import cache_dir
from tests.support.ports import free_ports

T = TypeVar("T")


def kubeconfig() -> Path:
    """The cluster ``python -m e2e.cluster up`` made, or the current one when that was asked for."""
    if os.environ.get("PRATIQUE_CLUSTER") == "existing":
        return Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    return cache_dir() / "kubeconfig"


def environment() -> dict[str, str]:
    return dict(os.environ, KUBECONFIG=str(kubeconfig()))


def kubectl_path() -> str:
    """kubectl that the cluster recipe built, else the one on PATH."""
    built = cache_dir() / "bin" / "kubectl"
    found = str(built) if built.exists() else shutil.which("kubectl")
    if found is None:
        raise RuntimeError("There is no kubectl: run make cluster")
    return found


def kubectl(*arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 60.0) -> str:
    """Standard output of kubectl; raises with its standard error when it fails and ``check`` is set."""
    result = run_kubectl(*arguments, stdin=stdin, timeout=timeout)
    if check and result.returncode != 0:
        raise RuntimeError(f"kubectl {' '.join(arguments)} failed: {result.stderr.strip()}")
    return result.stdout


def run_kubectl(*arguments: str, stdin: str | None = None, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [kubectl_path(), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=timeout,
        check=False,
    )


def apply(*manifests: dict[str, Any], namespace: str) -> None:
    """``kubectl apply`` of the manifests in one call, with strict validation as a person would have it."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
    kubectl("apply", "--validate=strict", "-n", namespace, "-f", "-", stdin=text)


def get(kind: str, name: str | None = None, *, namespace: str, selector: str | None = None) -> Any:
    """One object, or the list of them, as parsed JSON; None when a named object does not exist."""
    arguments = ["get", kind, *([name] if name else []), "-n", namespace, "-o", "json", "--ignore-not-found"]
    if selector:
        arguments += ["-l", selector]
    text = kubectl(*arguments)
    if name:
        return json.loads(text) if text.strip() else None
    return json.loads(text)["items"] if text.strip() else []


def condition(resource: Any, kind: str) -> dict[str, Any] | None:
    """A condition of a custom resource by type, or None."""
    conditions = ((resource or {}).get("status") or {}).get("conditions") or []
    return next((entry for entry in conditions if entry["type"] == kind), None)


def eventually(probe: Callable[[], T | None], *, timeout: float, what: str, every: float = 0.5) -> T:
    """The first true value of the probe: an empty list is not there yet."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        last = probe()
        if last:
            return last
        time.sleep(every)
    raise AssertionError(f"Not within {timeout:.0f} s: {what}")


@contextmanager
def port_forward(target: str, port: int, *, namespace: str) -> Iterator[str]:
    """``kubectl port-forward`` to ``svc/name`` or ``pod/name``; yields ``http://127.0.0.1:<port>``."""
    (local,) = free_ports(1)
    process = subprocess.Popen(
        [kubectl_path(), "port-forward", "-n", namespace, target, f"{local}:{port}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "Forwarding from" not in line:
            raise RuntimeError(f"kubectl port-forward {target} said: {line.strip()}")
        yield f"http://127.0.0.1:{local}"
    finally:
        process.terminate()
        process.communicate(timeout=10)
