"""What the e2e suite stands on: the cluster and operator that ``python -m e2e.up`` made, and a record of the tiny model.

Nothing here skips: without a cluster the first fixture fails with the command that makes one.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import example
from e2e.cluster.lifecycle import Context
from e2e.cluster.pins import NODE_MODELS
from e2e.support.kube import apply, kubectl, run_kubectl
from e2e.up import make_context
from pratique_contract.record import ReleaseRecord
from tests.support import models
from tests.support.no_skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]


@dataclass(frozen=True)
class Tiny:
    """The tiny model where pods see it, the service manifest it was recorded for, and the record."""

    folder: Path
    record: ReleaseRecord
    service: dict[str, Any] = field(hash=False)

    def manifest(self, name: str, **spec: Any) -> dict[str, Any]:
        """The recorded service under another name with some fields of its spec replaced."""
        manifest: dict[str, Any] = json.loads(json.dumps(self.service))
        manifest["metadata"]["name"] = name
        manifest["spec"] |= spec
        return manifest

    def record_map(self, name: str, record: ReleaseRecord | None = None) -> dict[str, Any]:
        """A ConfigMap with the record (or an altered one)."""
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {"record.json": (record or self.record).to_json()},
        }


def node_uri(folder: Path) -> str:
    """``file://`` URI of a folder in the model cache, as the node sees it."""
    return f"file://{NODE_MODELS}/{folder.relative_to(models.cache_dir() / 'models')}"


@pytest.fixture(scope="session")
def context() -> Context:
    made = make_context()
    if run_kubectl("get", "crd", "inferenceservices.serving.pratique.dev", timeout=20).returncode != 0:
        pytest.fail("There is no cluster with the operator: run `python -m e2e.up --no-chat` (make test-e2e does)")
    return made


@pytest.fixture(scope="session")
def tiny(context: Context) -> Tiny:
    folder = models.tiny_model()
    service: dict[str, Any] = {
        "apiVersion": "serving.pratique.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "tiny"},
        "spec": {
            "model": {"uri": node_uri(folder), "name": "tiny"},
            "engine": {"maxNumSeqs": 8, "maxBatchedTokens": 128, "kvCache": {"blocks": 128}},
            "replicas": 1,
            "drain": {"preStopSeconds": 2, "deadlineSeconds": 10},
            "template": {"spec": {"resources": {"requests": {"cpu": "50m", "memory": "300Mi"}}}},
        },
    }
    path = context.settings.cache / "work" / "tiny.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(service, sort_keys=False), encoding="utf-8")
    file = example.record(context, service=path, model=folder, name="tiny")
    record = ReleaseRecord.from_json(file.read_text(encoding="utf-8"))
    service["spec"]["release"] = {"fingerprint": record.fingerprint, "recordRef": {"name": "tiny-release"}}
    return Tiny(folder=folder, record=record, service=service)


@pytest.fixture
def namespace(context: Context) -> Iterator[str]:
    """A namespace of the test's own, deleted (without waiting) at its end."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def applied(namespace: str, tiny: Tiny) -> str:
    """The tiny service applied with its record; returns its name."""
    apply(tiny.record_map("tiny-release"), tiny.manifest("tiny"), namespace=namespace)
    return "tiny"
