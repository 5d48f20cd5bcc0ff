"""One holder at a time, whatever dies or sleeps, on nothing but exclusive creation of files."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pratique_server.fetch import lock as lock_module
from pratique_server.fetch.errors import HaltedError
from pratique_server.fetch.halt import Halt
from pratique_server.fetch.lock import FolderLock
from tests.support.fetching import QUICK_LOCK


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".model.lock"


@pytest.fixture
def halt() -> Iterator[Halt]:
    made = Halt()
    yield made
    made.stop()


def make_lock(folder: Path, halt: Halt, name: str = "pod-a") -> FolderLock:
    return FolderLock(folder, halt=halt, describe=lambda: "30 %", times=QUICK_LOCK, name=name)


def acquire(lock: FolderLock, said: "list[str] | None" = None) -> bool:
    return lock.acquire(give_up=lambda: False, say=(said if said is not None else []).append)


def test_many_at_once_hold_it_one_after_the_other(folder: Path, halt: Halt) -> None:
    inside, most, rounds = 0, 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most, rounds
        lock = make_lock(folder, halt)
        assert acquire(lock)
        with guard:
            inside, most, rounds = inside + 1, max(most, inside + 1), rounds + 1
        time.sleep(0.01)
        with guard:
            inside -= 1
        lock.release()

    workers = [threading.Thread(target=work) for _ in range(12)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (most, rounds) == (1, 12)


def test_a_waiter_says_for_whom_and_how_far_that_one_is(folder: Path, halt: Halt) -> None:
    holder = make_lock(folder, halt)
    assert acquire(holder)
    said: list[str] = []
    threading.Timer(0.1, holder.release).start()
    waiter = make_lock(folder, halt, "pod-b")
    assert acquire(waiter, said)
    assert said[0] == "Waiting for pod-a, which fetches the same source. 30 %"
    waiter.release()


def test_a_silent_holder_is_taken_over_by_exactly_one(folder: Path, halt: Halt) -> None:
    dead = make_lock(folder, halt)
    assert acquire(dead)
    dead._stop.set()  # as a frozen process: no beat, no release
    got: list[FolderLock] = []

    def work(name: str) -> None:
        lock = make_lock(folder, halt, name)
        if lock.acquire(give_up=lambda: bool(got), say=lambda _: None):
            got.append(lock)

    workers = [threading.Thread(target=work, args=(f"pod-{n}",)) for n in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(got) == 1
    with pytest.raises(HaltedError):
        dead.require_held()
    assert dead.lost
    got[0].release()


def test_a_holder_that_wakes_up_after_a_takeover_stops_at_its_next_beat(folder: Path, halt: Halt) -> None:
    sleeper = make_lock(folder, halt)
    assert acquire(sleeper)
    (folder / "00000002").write_text(json.dumps({"beat": "x-1", "name": "pod-b", "line": "", "process": {}}))
    deadline = time.monotonic() + 2
    while not sleeper.lost and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sleeper.lost
    assert sleeper.halt.stopped
    assert not halt.stopped  # the process itself goes on: it may wait for the other
    sleeper.release()
    assert json.loads((folder / "00000002").read_text())["beat"] == "x-1"


def test_an_ended_process_of_this_machine_is_not_waited_for(folder: Path, halt: Halt) -> None:
    gone = {**lock_module._this_process(), "pid": 2**22 + 1, "started": "1"}
    folder.mkdir()
    (folder / "00000007").write_text(json.dumps({"beat": "x-1", "name": "pod-b", "line": "", "process": gone}))
    started = time.monotonic()
    lock = make_lock(folder, halt)
    assert acquire(lock)
    assert time.monotonic() - started < QUICK_LOCK.dead_seconds / 2
    lock.release()


def test_an_earlier_container_of_the_same_pod_is_not_waited_for(
    folder: Path, halt: Halt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ids are another container's: only the pod's name tells."""
    before = {**lock_module._this_process(), "pids": 1, "started": "1"}
    folder.mkdir()
    content = json.dumps({"beat": "x-1", "name": "pod-a", "line": "", "process": before})
    (folder / "00000001").write_text(content)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    started = time.monotonic()
    lock = make_lock(folder, halt, "pod-a")
    assert acquire(lock)
    assert time.monotonic() - started < QUICK_LOCK.dead_seconds / 2
    lock.release()


def test_a_lock_file_without_content_is_a_holder_until_it_has_been_silent(folder: Path, halt: Halt) -> None:
    """A holder that died between creating and writing it."""
    folder.mkdir()
    (folder / "00000001").touch()
    started = time.monotonic()
    lock = make_lock(folder, halt)
    assert acquire(lock)
    assert time.monotonic() - started > QUICK_LOCK.dead_seconds
    lock.release()


def test_giving_up_is_possible_while_waiting(folder: Path, halt: Halt) -> None:
    holder = make_lock(folder, halt)
    assert acquire(holder)
    assert not make_lock(folder, halt, "pod-b").acquire(give_up=lambda: True, say=lambda _: None)
    holder.release()
