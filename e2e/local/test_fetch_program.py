"""The fetching program as a pod runs it: killed in mid-download, beside others that want the same source, asked how far it is."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.support.kube import eventually
from pratique_contract.reasons import Reason
from pratique_contract.serving import DownloadSpec, ModelSource, ServingSpec
from pratique_server.fetch.store import Store
from tests.support.fetching import LOADED, WEIGHTS, Place, names_in, same_content
from tests.support.hub import Fault
from tests.support.ports import free_ports

# One part of weights in about four seconds: time enough to look, and to kill.
SLOW = 75_000
# What a slow download goes on with when there was time enough.
QUICK = 1_000_000_000


@dataclass
class Programs:
    """Starts ``python -m pratique_server.fetch`` as a pod would; ends what is left at the end."""

    place: Place
    folder: Path
    running: "list[subprocess.Popen[str]]" = field(default_factory=list)

    @property
    def termination_log(self) -> Path:
        return self.folder / "termination-log"

    def start(
        self, *, port: int = 0, environment: dict[str, str] | None = None, **download: Any
    ) -> "subprocess.Popen[str]":
        options = {"hub_endpoint": self.place.hub.url, **download}
        spec = ServingSpec(
            served_model_name="tiny",
            model=ModelSource(path=str(self.place.path), uri="hf://owner/tiny", revision=self.place.commit),
            download=DownloadSpec(**options),
            host="127.0.0.1",
            management_port=port,
        )
        document = self.folder / f"serving-{len(self.running)}.json"
        document.write_text(json.dumps(spec.to_json_value()), encoding="utf-8")
        self.termination_log.touch()  # as the kubelet does
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pratique_server.fetch", "--config", str(document)),
                *("--termination-log", str(self.termination_log)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **(environment or {})},
        )
        self.running.append(process)
        return process

    def start_slow(self, *, bytes_min: int = 1) -> "subprocess.Popen[str]":
        """One whose weights come slowly, and so many bytes of them have come."""
        self.place.hub.faults.append(Fault(path=self.place.weights, rate=SLOW, times=1))
        process = self.start()
        wait_until(lambda: bytes_there(self.place) >= bytes_min, what=f"{bytes_min} bytes have come")
        return process

    def end(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=10)


wait_until = partial(eventually, timeout=20.0, every=0.05)


@pytest.fixture
def programs(place: Place, tmp_path: Path) -> Iterator[Programs]:
    started = Programs(place, tmp_path)
    yield started
    started.end()


def bytes_there(place: Place) -> int:
    """Bytes of the weights whose arrival is on record."""
    try:
        state = json.loads((place.partial / ".state" / f"{WEIGHTS}.json").read_text())
    except (OSError, ValueError):
        return 0
    return sum(part[2] for part in state["parts"])


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_fetches_with_an_empty_home_and_ends_with_zero(programs: Programs) -> None:
    process = programs.start()
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    assert names_in(programs.place.path) == LOADED
    assert lines(output)[-1]["message"] == "Fetched everything"
    assert programs.termination_log.read_text() == ""


def test_a_killed_download_goes_on_where_it_was(programs: Programs) -> None:
    """kserve#3256: a node's restart must not begin tens of gigabytes anew."""
    place = programs.place
    first = programs.start_slow(bytes_min=80_001)
    first.send_signal(signal.SIGKILL)
    first.wait(timeout=10)
    assert not place.path.exists()
    there, asked = bytes_there(place), len(place.hub.requests)
    second = programs.start()
    output, _ = second.communicate(timeout=30)
    assert second.returncode == 0, output
    resumed = [a.range for a in place.hub.requests[asked:] if a.path == place.weights]
    assert resumed == [f"bytes={there}-299999"]
    assert same_content(place.path, place.origin)


def test_two_processes_share_one_download(programs: Programs) -> None:
    """One fetches, the other waits, says so, and finds the folder complete."""
    place = programs.place
    slow = Fault(path=place.weights, rate=SLOW // 4, times=1)
    place.hub.faults.append(slow)
    first = programs.start()
    wait_until(lambda: bytes_there(place) > 0, what="the first has begun")
    (port,) = free_ports(1)
    second = programs.start(port=port)
    waiting = wait_until(lambda: _message(port, "of 293"), what="the first one's progress is told along")
    assert waiting.startswith(f"Waiting for {socket.gethostname()}, which fetches the same source. Downloading")
    slow.rate = QUICK
    for process in (first, second):
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0, output
    assert len(place.hub.asked(place.weights)) == 1
    assert names_in(place.path) == LOADED


def test_of_many_at_once_one_fetches(programs: Programs) -> None:
    started = [programs.start() for _ in range(3)]
    for process in started:
        output, _ = process.communicate(timeout=50)
        assert process.returncode == 0, output
    assert len(programs.place.hub.asked(programs.place.weights)) == 1


def test_a_dead_holder_s_lock_is_taken_over(programs: Programs) -> None:
    place = programs.place
    first = programs.start_slow()
    second = programs.start()
    time.sleep(1)
    first.kill()
    output, _ = second.communicate(timeout=30)
    assert second.returncode == 0, output
    assert same_content(place.path, place.origin)


def test_the_verdict_says_how_far_it_is(programs: Programs) -> None:
    place, (port,) = programs.place, free_ports(1)
    place.hub.faults.append(Fault(path=place.weights, rate=SLOW, times=1))
    programs.start(port=port)
    message = wait_until(lambda: _message(port, "MB/s"), what="it says how fast")
    assert f"Downloading hf://owner/tiny at {place.commit[:12]}" in message
    assert _get(port, "livez").status_code == 200
    assert _get(port, "readyz").status_code == 503


def test_a_stop_ends_at_once_keeps_what_came_and_frees_the_lock(programs: Programs) -> None:
    place = programs.place
    first = programs.start_slow()
    stopped_at = time.monotonic()
    first.terminate()
    assert first.wait(timeout=10) == 128 + signal.SIGTERM
    assert time.monotonic() - stopped_at < 3
    assert bytes_there(place) > 0
    newest = max(path for path in Store(place.path).lock.iterdir())
    assert json.loads(newest.read_text())["beat"] == "released"


def test_a_stop_does_not_wait_for_a_peer_that_says_nothing(programs: Programs) -> None:
    place = programs.place
    place.hub.faults.append(Fault(path="/api/*", stall=30.0))
    process = programs.start()
    wait_until(lambda: place.hub.asked("/api/*"), what="the hub is asked")
    process.terminate()
    assert process.wait(timeout=15) == 128 + signal.SIGTERM


def test_a_failure_ends_with_one_and_leaves_its_reason_for_the_kubelet(programs: Programs) -> None:
    programs.place.hub.faults.append(Fault(path="*/config.json", status=403))
    process = programs.start()
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    last = lines(output)[-1]
    assert last["level"] == "error"
    last_word = programs.termination_log.read_text()
    assert last_word.startswith(f"{Reason.DOWNLOAD_UNAUTHORIZED}: 127.0.0.1 refuses config.json with status 403")
    assert last["message"] == f"Could not fetch: {last_word.strip()}"


def test_a_document_that_cannot_be_read_has_a_last_word_too(programs: Programs) -> None:
    process = programs.start(credentials_path="/nonexistent")
    process.communicate(timeout=30)
    assert process.returncode == 1
    assert programs.termination_log.read_text().startswith("DownloadFailed: The credentials folder /nonexistent")


def test_no_secret_is_printed_whatever_fails(programs: Programs, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_text("hf_averysecrettoken\n")
    programs.place.hub.faults.append(Fault(path="/cdn/*", cut=10))
    process = programs.start(credentials_path=str(secret), attempts=2)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "averysecret" not in output
    assert "very-secret" not in output  # the signature in the storage's address
    assert Reason.DOWNLOAD_TRUNCATED in output


def _get(port: int, name: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{port}/{name}", timeout=2, trust_env=False, verify=False)


def _message(port: int, part: str) -> str | None:
    try:
        verdict = _get(port, "verdict").json()
    except httpx.HTTPError:
        return None
    assert (verdict["result"], verdict["reason"]) == ("Pending", "Downloading")
    return str(verdict["message"]) if part in verdict["message"] else None
