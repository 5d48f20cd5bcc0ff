"""Removing what nobody uses from a shared cache: never what a pod serves from or a fetch is at work on, whoever is killed and whenever."""

import contextlib
import errno
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pratique_contract.sources import CACHE_FOLDER_DIGITS, cache_folder
from pratique_server.fetch.cache import CLOCK_FILE, list_entries, plan, prune
from pratique_server.fetch.errors import FetchError, HaltedError
from pratique_server.fetch.halt import Halt
from pratique_server.fetch.lock import LockTimes
from pratique_server.fetch.store import RECEIPT_FILE, Store
from tests.support.fetching import NAME, QUICK_LOCK, WEIGHTS, Place, failure, fetch, make_repository, same_content
from tests.support.hub import Fault, Hub
from tests.unit.cli.conftest import Run

DAY = 86400.0
LONG_LOCK = LockTimes(beat_seconds=0.05, poll_seconds=0.02, dead_seconds=60.0)
InUse = Callable[[], Set[str]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """As pods name folders."""
    origin = make_repository(tmp_path / "origin" / NAME)
    with Hub(tmp_path / "origin") as hub:
        name = Path(cache_folder(f"hf://{NAME}", hub.repositories[NAME].commit)).name
        yield Place(hub, origin, tmp_path / "cache" / name)


def age(path: Path, seconds: float = 30 * DAY) -> None:
    """As if nobody had looked at it or written to it for so long."""
    then = time.time() - seconds
    for found in (path, *path.rglob("*")):
        os.utime(found, (then, then), follow_symlinks=False)


def run(place: Place, *, in_use: InUse = frozenset, older_than: float = DAY) -> dict[str, str | None]:
    """What became of each folder."""
    outcomes = prune(place.path.parent, older_than=older_than, in_use=in_use, halt=Halt(), times=QUICK_LOCK)
    return {outcome.entry.path.name: outcome.kept for outcome in outcomes}


def is_whole(place: Place) -> bool:
    receipt = Store(place.path).read_receipt()
    return receipt is not None and all((place.path / entry.path).is_file() for entry in receipt.files)


def test_a_folder_that_nobody_uses_goes_and_can_be_fetched_again(place: Place) -> None:
    fetch(place.target(), place.settings())
    age(place.path)
    assert run(place) == {place.path.name: None}
    left = {path.name for path in place.path.parent.iterdir()}
    assert left == {f".{place.path.name}.lock", CLOCK_FILE}  # a lock's numbers must never begin again
    fetch(place.target(), place.settings())
    assert same_content(place.path, place.origin)


def test_what_is_used_or_was_looked_at_lately_stays(place: Place) -> None:
    fetch(place.target(), place.settings())
    assert run(place) == {place.path.name: "used lately"}
    age(place.path)
    assert run(place, in_use=lambda: {place.path.name}) == {place.path.name: "in use"}
    fetch(place.target(), place.settings())  # found complete: a pod is starting that no list may show yet
    assert run(place) == {place.path.name: "used lately"}
    assert is_whole(place)


def test_what_somebody_has_put_on_the_volume_is_not_looked_at(place: Place) -> None:
    """A folder that ``pratique fetch`` has filled for a pvc:// source has a receipt too, and no pod names it as a cache's."""
    root = place.path.parent
    mine = root / "smollm2-135m"
    fetch(place.target(path=mine), place.settings())
    (root / "hf-0123456789abcdef01234567").mkdir()  # without a receipt
    (root / f"hf-{'a' * 24}").symlink_to(mine)
    for path in (mine, root / "hf-0123456789abcdef01234567"):
        age(path)
    (root / CLOCK_FILE).touch()
    before = sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))
    assert run(place) == {}
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*")) == before


def test_what_a_failed_download_has_left_goes_when_its_service_is_gone(place: Place) -> None:
    place.hub.faults.append(Fault(path=place.weights, cut=1000))
    failure(place.target(), place.settings())
    assert place.partial.is_dir()
    assert run(place) == {place.partial.name: "used lately"}
    age(place.partial)
    assert run(place, in_use=lambda: {place.path.name}) == {place.partial.name: "in use"}  # it will be tried again
    assert run(place) == {place.partial.name: None}
    assert not place.partial.exists()


def test_a_folder_that_is_being_fetched_stays(place: Place) -> None:
    place.hub.faults.append(Fault(path=place.weights, rate=100_000, times=1))
    fetching = threading.Thread(target=fetch, args=(place.target(), place.settings()))
    fetching.start()
    while not (place.partial / ".state" / f"{WEIGHTS}.json").exists():
        time.sleep(0.01)
    assert run(place, older_than=-1.0) == {place.partial.name: "being fetched"}
    fetching.join(timeout=20)
    assert same_content(place.path, place.origin)


def test_a_lock_that_a_killed_fetch_has_left_is_taken_over(place: Place) -> None:
    place.hub.faults.append(Fault(path=place.weights, cut=1000))
    failure(place.target(), place.settings())
    (newest,) = Store(place.path).lock.iterdir()
    newest.write_text('{"beat": "x-1", "name": "pod-gone", "line": "", "process": {}}')
    for path in (place.partial, newest):
        age(path)
    assert run(place) == {place.partial.name: None}


@pytest.mark.parametrize("look", [1, 2])
def test_a_pod_that_comes_while_it_is_being_removed_gets_it_back(place: Place, look: int) -> None:
    """At the list of pods before the folder loses its name, and at the one after."""
    fetch(place.target(), place.settings())
    age(place.path)
    inode, asked = place.path.stat().st_ino, iter(range(9))
    assert run(place, in_use=lambda: {place.path.name} if next(asked) >= look else set()) == {place.path.name: "in use"}
    assert (place.path.stat().st_ino, is_whole(place)) == (inode, True)


def test_a_pod_that_no_list_shows_yet_is_seen_by_the_time_it_leaves(place: Place) -> None:
    fetch(place.target(), place.settings())
    age(place.path)
    asked = iter(range(9))

    def in_use() -> Set[str]:
        if next(asked) == 1:
            fetch(place.target(), place.settings())  # finds it complete, and takes no lock
        return set()

    assert run(place, in_use=in_use) == {place.path.name: "used lately"}
    assert is_whole(place)


@pytest.mark.parametrize("error", [FetchError("the API server is away"), HaltedError(), KeyboardInterrupt()])
def test_when_nobody_can_be_asked_any_more_it_stays(place: Place, error: BaseException) -> None:
    fetch(place.target(), place.settings())
    age(place.path)
    asked = iter(range(9))

    def in_use() -> Set[str]:
        if next(asked) == 2:
            raise error
        return set()

    with pytest.raises(type(error)):
        run(place, in_use=in_use)
    assert is_whole(place)
    assert run(place) == {place.path.name: None}


def fill(monkeypatch: pytest.MonkeyPatch, place: Place, *, until: Callable[[], bool]) -> None:
    """The volume takes new names, but nothing to write into them."""
    write_text = Path.write_text

    def refuse(path: Path, *arguments: Any, **options: Any) -> int:
        if place.path.parent in path.parents and not until():
            path.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", refuse)


def test_room_is_made_on_a_full_volume(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fetches say "pratique cache prune" it has to work, without room for a beat of the lock."""
    fetch(place.target(), place.settings())
    age(place.path)
    with monkeypatch.context() as patched:
        fill(patched, place, until=lambda: not list(place.path.parent.glob(f"*{place.path.name}*/{WEIGHTS}")))
        assert run(place) == {place.path.name: None}
    fetch(place.target(), replace(place.settings(), lock_times=LONG_LOCK))  # nobody is waited for
    assert is_whole(place)


def test_folder_that_stays_on_a_full_volume_leaves_no_lock_that_others_wait_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(place.target(), place.settings())
    age(place.path)
    asked = iter(range(9))
    with monkeypatch.context() as patched:
        fill(patched, place, until=lambda: False)
        assert run(place, in_use=lambda: {place.path.name} if next(asked) == 2 else set()) == {
            place.path.name: "in use"
        }
    shutil.rmtree(place.path)
    fetch(place.target(), replace(place.settings(), lock_times=LONG_LOCK))
    assert is_whole(place)


def test_folder_that_cannot_be_removed_keeps_no_other_from_going(place: Place) -> None:
    fetch(place.target(), place.settings())
    age(place.path)
    stuck = place.path.with_name(f".hf-{'0' * CACHE_FOLDER_DIGITS}.partial")
    stuck.mkdir()
    age(stuck)
    lock = stuck.with_name(f".hf-{'0' * CACHE_FOLDER_DIGITS}.lock")
    lock.touch()  # no folder, so nobody can hold it
    with pytest.raises(FetchError, match=stuck.name):
        run(place)
    assert (place.path.exists(), stuck.is_dir()) == (False, True)
    lock.unlink()
    assert run(place) == {stuck.name: None}


def run_until_heard(place: Place, used: Set[str]) -> dict[str, str | None]:
    """Again while a lock may still be somebody's: one that was killed before its first word is waited for as long as any."""
    deadline = time.monotonic() + 10
    while "being fetched" in (outcome := run(place, in_use=lambda: used)).values():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return outcome


def die_at(step: int, place: Place) -> bool:
    """Prune in a child that is killed before its ``step``-th change; False when it had not so many."""
    child = os.fork()
    if child == 0:
        _be_the_child(step, place)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed"
    return False


def _be_the_child(step: int, place: Place) -> None:
    left = step
    changes = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.utime")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_CREAT)
        if event in changes or writes:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    with contextlib.suppress(BaseException):
        sys.addaudithook(hook)
        run(place)
        code = 0
    os._exit(code)


@pytest.mark.parametrize("used_after", [False, True])
def test_it_may_be_killed_at_any_moment(place: Place, used_after: bool) -> None:
    """Then a service wants the folder again, or not: the next pruning and the next fetch find their way, and nothing half-removed is ever
    under the name."""
    neighbour = place.target(path=place.path.with_name(f"oci-{'b' * 24}"))
    fetch(neighbour, place.settings())
    for step in range(1, 200):
        fetch(place.target(), place.settings())
        age(place.path)
        shutil.rmtree(
            Store(place.path).lock, ignore_errors=True
        )  # what an earlier step has left there would be waited for
        killed = die_at(step, place)
        assert not place.path.exists() or is_whole(place), step
        used = {place.path.name, neighbour.path.name} if used_after else {neighbour.path.name}
        outcome = run_until_heard(place, used)
        if not used_after:
            assert not place.path.exists(), (step, outcome)
        assert not place.path.exists() or is_whole(place), step
        assert not list(place.path.parent.glob(".*.removed")), (step, outcome)
        if not killed:
            assert step > 10
            break
    else:
        raise AssertionError("never done")
    fetch(place.target(), place.settings())
    assert same_content(place.path, place.origin)
    assert same_content(neighbour.path, place.origin)


def test_pods_that_come_and_go_keep_their_folder_while_many_prune(place: Place) -> None:
    """Each pod is known to the API server before it fetches, and serves for a while: all that time its folder is whole."""
    pods: list[str] = []
    guard, stop, broken = threading.Lock(), threading.Event(), []
    removed = 0

    def in_use() -> Set[str]:
        with guard:
            return set(pods)

    def found() -> int | None:
        """The whole folder's inode. It is away between two looks when a pod came after the first of them: then it comes back."""
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                inode = place.path.stat().st_ino
                if is_whole(place):
                    return inode
            time.sleep(0.001)
        return None

    def be_pods(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(6):
            with guard:
                pods.append(place.path.name)
            fetch(place.target(), place.settings())
            inode = found()
            for _ in range(chance.randrange(1, 10)):
                time.sleep(0.005)
                if inode is None or found() != inode:
                    broken.append(seed)
            with guard:
                pods.remove(place.path.name)
            time.sleep(chance.random() * 0.2)

    def keep_pruning() -> None:
        nonlocal removed
        while not stop.is_set():
            removed += sum(kept is None for kept in run(place, in_use=in_use, older_than=0.05).values())

    place.path.parent.mkdir()
    pruners = [threading.Thread(target=keep_pruning) for _ in range(2)]
    servers = [threading.Thread(target=be_pods, args=(seed,)) for seed in range(2)]
    for thread in (*pruners, *servers):
        thread.start()
    for thread in servers:
        thread.join()
    stop.set()
    for thread in pruners:
        thread.join()
    assert broken == []
    assert removed > 0


def test_the_list_tells_state_size_and_source(place: Place, pratique: Run) -> None:
    fetch(place.target(), place.settings())
    age(place.path, 3 * DAY)
    result = pratique("cache", "list", place.path.parent)
    assert (result.code, result.out.split()[:5]) == (0, ["NAME", "STATE", "SIZE", "IDLE", "SOURCE"])
    row = result.out.splitlines()[1].split()
    assert (row[0], row[1], row[-2], row[-1]) == (place.path.name, "finished", "3d", f"hf://{NAME}")
    (entry,) = list_entries(place.path.parent)
    assert entry.size_bytes >= (place.origin / WEIGHTS).stat().st_size


def test_a_plan_changes_nothing(place: Place) -> None:
    fetch(place.target(), place.settings())
    age(place.path)
    (outcome,) = plan(place.path.parent, older_than=DAY, in_use=frozenset)
    assert outcome.kept is None
    assert is_whole(place)
    assert (place.path / RECEIPT_FILE).stat().st_mtime < time.time() - DAY
