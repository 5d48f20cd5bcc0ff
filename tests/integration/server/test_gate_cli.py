"""The command line with the real server: record a folder, serve it, talk to it, stop it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from pratique_contract.record import ReleaseRecord
from tests.support import mutations
from tests.support.mutations import copy_of

READY_SECONDS_MAX = 50.0


def _pratique(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pratique_cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait_verdict(port: int, child: "subprocess.Popen[bytes]") -> dict[str, Any]:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline:
        assert child.poll() is None, "the server ended"
        try:
            verdict: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}/verdict", trust_env=False).json()
        except httpx.TransportError:
            verdict = {"result": "Pending"}
        if verdict["result"] != "Pending":
            return verdict
        time.sleep(0.1)
    raise AssertionError("no verdict in time")


@pytest.fixture
def record_file(tiny_model_dir: Path, tmp_path: Path) -> Path:
    path = tmp_path / "record.json"
    result = _pratique("release", "record", "--model", tiny_model_dir, "--output", path)
    assert result.returncode == 0, result.stderr
    return path


@pytest.mark.timeout(150)
def test_a_folder_is_recorded_verified_served_and_answers(
    record_file: Path, tiny_model_dir: Path, tmp_path: Path
) -> None:
    record = ReleaseRecord.from_json(record_file.read_text())
    wrong = copy_of(tiny_model_dir, tmp_path / "wrong", mutations.remove_last_merge)
    verdict = _pratique("release", "verify", "--record", record_file, "--model", wrong, "-o", "json")
    assert verdict.returncode == 1, verdict.stderr
    assert json.loads(verdict.stdout)["reason"] == "TokenizerMismatch"

    port, management = _free_port(), _free_port()
    arguments = ["serve", "--model", tiny_model_dir, "--record", record_file, "--port", port]
    command = [sys.executable, "-m", "pratique_cli", *map(str, arguments), "--management-port", str(management)]
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        proved = _wait_verdict(management, child)
        assert (proved["result"], proved["fingerprint"]) == ("Pass", record.fingerprint), proved["message"]
        case = next(case for case in record.golden.cases if len(case.messages) == 1)
        answer = _pratique(
            "chat",
            *("--url", f"http://127.0.0.1:{port}"),
            *("--temperature", 0, "--max-tokens", case.max_tokens),
            case.messages[0]["content"],
        )
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout == f"{case.outputs[0].text}\n"
        assert record.fingerprint in answer.stderr
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 0
    finally:
        if child.poll() is None:
            child.kill()
            child.wait(10)
