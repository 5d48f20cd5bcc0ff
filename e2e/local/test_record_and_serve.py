"""The command line with the real server: record a release twice, verify it, serve it, talk to it, stop it."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from pratique_contract.record import ReleaseRecord
from tests.support import mutations
from tests.support.adapters import make_adapter
from tests.support.model_code import CODE, add_code
from tests.support.mutations import copy_of
from tests.support.ports import free_ports
from tests.unit.cli.conftest import Run

READY_SECONDS_MAX = 120.0
RECORD_SECONDS_MAX = 170.0
# As a container has it, whatever machine this is.
BARE = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Place:
    """Where one person records: a model with its code and an adapter of their own, a home, a temporary folder, a working directory."""

    folder: Path

    @property
    def record(self) -> Path:
        return self.folder / "record.json"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def model(self) -> Path:
        return self.folder / "models" / self.folder.name

    def release(self, model: Path | None = None) -> list[str]:
        """The options that say what the release is made of."""
        return [
            *("--model", str(model or self.model)),
            *("--adapter", f"a={self.folder / 'adapters' / 'a'}", "--quantization", "Int8WeightOnly"),
            "--trust-remote-code",
        ]

    def start_recording(self, model: Path, **environment: str) -> "subprocess.Popen[bytes]":
        """In a process that shares nothing with this one but the interpreter and the code."""
        temporary, cwd = self.folder / "tmp", self.folder / "cwd"
        for folder in (self.home, temporary, cwd):
            folder.mkdir(parents=True)
        add_code(copy_of(model, self.model))
        make_adapter(self.folder / "adapters" / "a", model, targets=["q_proj"])
        command = [sys.executable, "-m", "pratique_cli", "release", "record", *self.release(), "--output"]
        given = {**BARE, "HOME": str(self.home), "TMPDIR": str(temporary), **environment}
        return subprocess.Popen([*command, str(self.record)], cwd=cwd, env=given, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def places(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Place]:
    """Two people have recorded the same files at the same time, far apart."""
    room = tmp_path_factory.mktemp("recorded")
    first, second = Place(room / "genoa"), Place(room / "a far harbour")
    processes = [
        first.start_recording(tiny_model_dir, PYTHONHASHSEED="0", LC_ALL="C.UTF-8", TZ="UTC"),
        second.start_recording(
            tiny_model_dir, PYTHONHASHSEED="4242", LC_ALL="C", LANG="tr_TR.UTF-8", TZ="Pacific/Kiritimati",
            PYTHONDONTWRITEBYTECODE="1", COLUMNS="40", OMP_NUM_THREADS="2",
        ),
    ]  # fmt: skip
    for process in processes:
        _, errors = process.communicate(timeout=RECORD_SECONDS_MAX)
        assert process.returncode == 0, errors.decode()
    return first, second


@pytest.mark.timeout(180)
def test_two_records_made_apart_are_byte_identical(places: tuple[Place, Place]) -> None:
    """No home, folder, clock, language or hash seed gets in."""
    first, second = places
    content = first.record.read_bytes()
    assert content == second.record.read_bytes()
    record = ReleaseRecord.from_json(content)
    assert record.golden.cases
    assert [adapter.name for adapter in record.manifest.adapters.adapters] == ["a"]
    assert set(CODE) <= {file.path for file in record.manifest.model.files}
    assert str(first.folder.parent).encode() not in content
    # Nothing was left behind in a home: the next run finds what this one found.
    assert [list(place.home.iterdir()) for place in places] == [[], []]


@pytest.mark.timeout(180)
def test_another_tokenizer_does_not_verify(places: tuple[Place, Place], tmp_path: Path, pratique: Run) -> None:
    place = places[0]
    wrong = copy_of(place.model, tmp_path / "wrong", mutations.remove_last_merge)
    verdict = pratique("release", "verify", "--record", place.record, *place.release(wrong), "-o", "json")
    assert verdict.code == 1, verdict.err
    assert json.loads(verdict.out)["reason"] == "TokenizerMismatch"


def _wait_verdict(port: int, child: "subprocess.Popen[bytes]") -> dict[str, Any]:
    deadline = time.monotonic() + READY_SECONDS_MAX
    with httpx.Client(trust_env=False, verify=False) as client:
        while time.monotonic() < deadline:
            assert child.poll() is None, "the server ended"
            try:
                verdict: dict[str, Any] = client.get(f"http://127.0.0.1:{port}/verdict").json()
            except httpx.TransportError:
                verdict = {"result": "Pending"}
            if verdict["result"] != "Pending":
                return verdict
            time.sleep(0.1)
    raise AssertionError("no verdict in time")


@pytest.mark.timeout(180)
def test_the_recorded_release_is_served_and_answers(places: tuple[Place, Place], tmp_path: Path) -> None:
    place = places[0]
    record = ReleaseRecord.from_json(place.record.read_text())
    port, management = free_ports(2)
    ports = ["--port", str(port), "--management-port", str(management)]
    pratique = [sys.executable, "-m", "pratique_cli"]
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen(
            [*pratique, "serve", *place.release(), "--record", str(place.record), *ports],
            stdout=log,
            stderr=log,
            env={**os.environ, **BARE},
        )
    try:
        proved = _wait_verdict(management, child)
        assert (proved["result"], proved["fingerprint"]) == ("Pass", record.fingerprint), proved["message"]
        case = next(case for case in record.golden.cases if len(case.messages) == 1)
        greedy = ["--temperature", "0", "--max-tokens", str(case.max_tokens), case.messages[0]["content"]]
        answer = subprocess.run(
            [*pratique, "chat", "--url", f"http://127.0.0.1:{port}", *greedy],
            capture_output=True,
            text=True,
            check=False,
            timeout=55,
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
