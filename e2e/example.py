"""The example service: convert the model once, record its release, stamp and apply the manifest, wait until it is verified."""

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

from e2e.cluster.lifecycle import Context
from e2e.cluster.pins import REPOSITORY
from e2e.support.kube import condition, environment, get, kubectl
from pratique_contract.constants import LABEL_SERVICE
from tests.support import models

NAMESPACE = "demo"
NAME = "smollm2"
MANIFEST = REPOSITORY / "examples" / "smollm2.yaml"
MODEL_LINK = "smollm2-135m-instruct"
READY_TIMEOUT_S = 300.0


def prepare_model(context: Context) -> Path:
    """The converted model, under the stable name that the example's manifest uses."""
    with context.progress.step("Preparing SmolLM2-135M-Instruct (converted once, then cached)", usual_s=25):
        folder = models.smollm2()
    link = folder.parent / MODEL_LINK
    if not link.is_symlink() or link.readlink() != Path(folder.name):
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
    return folder


def record(context: Context, *, service: Path, model: Path, name: str) -> Path:
    """The release record of a service manifest and a model folder, cached by everything that decides it."""
    key = _record_key(service, model)
    target = context.settings.cache / "records" / f"{name}-{key}.json"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with context.progress.step(f"Recording the release of {name} (pratique release record)", usual_s=40):
        partial = target.with_suffix(".partial")
        command = ["release", "record", "--service", str(service), "--model", str(model), "--output", str(partial)]
        pratique(*command)
        partial.rename(target)
    return target


def _record_key(service: Path, model: Path) -> str:
    """The record depends on the model folder (named by content), the manifest, our source and the pinned libraries."""
    digest = hashlib.sha256(model.name.encode() + service.read_bytes() + (REPOSITORY / "constraints.txt").read_bytes())
    for tree in ("contract", "server"):
        for path in sorted((REPOSITORY / tree).rglob("*.py")):
            digest.update(str(path.relative_to(REPOSITORY)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def pratique(*arguments: str, stdin: str | None = None, timeout: float = 600.0) -> str:
    """Run our command line as a person would; raises with what it printed when it fails."""
    result = subprocess.run(
        [sys.executable, "-m", "pratique_cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=timeout,
        check=False,
    )
    if result.returncode != 0:
        raise RuntimeError(f"pratique {' '.join(arguments[:2])} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def deploy(context: Context) -> None:
    """Apply record and service; returns once the service is Ready, printing each change of its conditions meanwhile."""
    model = prepare_model(context)
    file = record(context, service=MANIFEST, model=model, name=NAME)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    kubectl("apply", "-f", "-", stdin=json.dumps(namespace))
    config_map = pratique("release", "show", str(file), "--format", "configmap", "--name", f"{NAME}-release")
    kubectl("apply", "--server-side", "--force-conflicts", "-n", NAMESPACE, "-f", "-", stdin=config_map)
    stamped = pratique("release", "stamp", str(MANIFEST), "--record", str(file))
    kubectl("apply", "--validate=strict", "-n", NAMESPACE, "-f", "-", stdin=stamped)
    with context.progress.step("Waiting until the service has proved its release", usual_s=40):
        wait_ready(context)


def _pods_are_ready() -> bool:
    pods = json.loads(kubectl("get", "pods", "-n", NAMESPACE, "-l", f"{LABEL_SERVICE}={NAME}", "-o", "json"))["items"]
    return bool(pods) and all((condition(pod, "Ready") or {}).get("status") == "True" for pod in pods)


def wait_ready(context: Context) -> None:
    """Follow the Ready condition and the pods'; raises with the condition's last message after ``READY_TIMEOUT_S``. After a restart of
    the node the condition is the operator's from before until the operator is back."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    shown = ""
    while time.monotonic() < deadline:
        resource = get("inferenceservice", NAME, namespace=NAMESPACE)
        ready = condition(resource, "Ready") or {}
        line = f"Ready={ready.get('status', 'Unknown')} {ready.get('reason', '')}: {ready.get('message', '')}"
        if line != shown:
            context.progress.say(line)
            shown = line
        generation = resource["metadata"]["generation"] if resource else -1
        if (
            ready.get("status") == "True"
            and ready.get("observedGeneration", generation) == generation
            and _pods_are_ready()
        ):
            return
        time.sleep(1)
    raise RuntimeError(f"Not Ready within {READY_TIMEOUT_S:.0f} s. Last seen: {shown}")
