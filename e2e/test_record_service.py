"""A running service makes its release record: through the API server, with the pod's own engine, while it serves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from e2e import example
from e2e.support import service
from e2e.support.kube import environment, kubectl
from pratique_contract.record import ReleaseRecord

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def _pratique(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pratique_cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=390, env=environment())


@pytest.mark.real_model
def test_the_record_of_a_running_service_is_the_approved_release(tmp_path: Path) -> None:
    approved = service.read(example.NAME, example.NAMESPACE)["spec"]["release"]["fingerprint"]
    path = tmp_path / "record.json"
    made = _pratique("release", "record", "--service", example.NAME, "-n", example.NAMESPACE, "--output", path)
    assert made.returncode == 0, made.stderr
    record = ReleaseRecord.from_json(path.read_text())
    assert record.fingerprint == approved
    # The same pod again, as the owner of a record who adds a host: it has this device's outputs already.
    again = tmp_path / "again.json"
    where = ("--service", example.NAME, "-n", example.NAMESPACE)
    extended = _pratique("release", "record", *where, "--add-output", path, "--output", again)
    assert extended.returncode == 0, extended.stderr
    assert "has the outputs of this device already" in extended.stderr
    assert again.read_text() == path.read_text()
    # It goes on serving, and its verdict is what it was.
    ready = json.loads(kubectl("get", "psvc", example.NAME, "-n", example.NAMESPACE, "-o", "json"))
    assert ready["status"]["serving"]["verifiedReplicas"] == ready["status"]["serving"]["replicas"]
