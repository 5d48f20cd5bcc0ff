"""What lies on a shared download cache, and the removal of what nobody uses any more.

The rules, for each name and under its lock (no fetch is at work on it): it has not been looked at for ``older_than`` seconds, by the
volume's own clock, and ``in_use`` does not name it. Then it loses its name with one rename, both are asked once more, and only what is
still unused is deleted; else it gets its name back. Whoever is killed in between leaves ``.NAME.removed``, which the next one puts back
or deletes. Only folders that pods name are looked at: what somebody has put on the same volume is not ours.
"""

import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pratique_contract.sources import CACHE_FOLDER_DIGITS, FETCHED_SCHEMES
from pratique_server.fetch.errors import FetchError, HaltedError, explain_os_error
from pratique_server.fetch.halt import Halt
from pratique_server.fetch.lock import FolderLock, LockTimes
from pratique_server.fetch.store import RECEIPT_FILE, Store

State = Literal["finished", "partial", "removed"]
# What a pod that has just looked at a folder needs to be known to the API server, many times over; and what clocks may differ by.
OLDER_THAN_SECONDS_MIN: Final = 3600.0
# Empty, and its time is the volume's.
CLOCK_FILE: Final = ".pratique-cache"
_NAME: Final = rf"(?:{'|'.join(FETCHED_SCHEMES)})-[0-9a-f]{{{CACHE_FOLDER_DIGITS}}}"
_FINISHED: Final = re.compile(rf"({_NAME})")
_OTHERS: Final = re.compile(rf"\.({_NAME})\.(partial|removed)")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One folder. ``idle_seconds`` since a fetch last looked at it or wrote to it; ``source`` as its receipt names it, where it has one."""

    name: str
    state: State
    path: Path
    source: str | None
    size_bytes: int
    idle_seconds: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of an entry: ``kept`` says why, None when it is gone."""

    entry: Entry
    kept: str | None


def list_entries(root: Path) -> list[Entry]:
    """Everything on the volume that pods have fetched or begun to; raises ``FetchError``."""
    try:
        now = _volume_time(root)
        return sorted(_entries(root, now), key=lambda entry: (entry.name, entry.state))
    except OSError as error:
        raise explain_os_error(error, str(root)) from error


def plan(root: Path, *, older_than: float, in_use: Callable[[], Set[str]]) -> Iterator[Outcome]:
    """What ``prune`` would do as things are now."""
    used = in_use()
    for entry in list_entries(root):
        yield Outcome(entry=entry, kept=_why_kept(entry, older_than, used))


def prune(
    root: Path,
    *,
    older_than: float,
    in_use: Callable[[], Set[str]],
    halt: Halt,
    times: LockTimes | None = None,
) -> Iterator[Outcome]:
    """Remove what is unused, one folder after the other. ``in_use`` asks afresh which names are used; what it raises ends the pruning,
    and what was about to go is kept. A folder that cannot be removed is told at the end, as ``FetchError``: the others make the room
    that it may lack. Raises ``HaltedError``, too."""
    used, failure = in_use(), None
    for entry in list_entries(root):
        halt.check()
        kept = _why_kept(entry, older_than, used)
        if kept is None or entry.state == "removed":
            try:
                kept = _Removal(root, entry, older_than=older_than, in_use=in_use, halt=halt, times=times).run()
            except OSError as error:
                failure = failure or explain_os_error(error, str(entry.path))
                continue
        yield Outcome(entry=entry, kept=kept)
    if failure is not None:
        raise failure


def _why_kept(entry: Entry, older_than: float, used: Set[str]) -> str | None:
    if entry.name in used:
        return "in use"
    return "used lately" if entry.idle_seconds < older_than else None


class _Removal:
    """One folder under its lock."""

    def __init__(
        self,
        root: Path,
        entry: Entry,
        *,
        older_than: float,
        in_use: Callable[[], Set[str]],
        halt: Halt,
        times: LockTimes | None,
    ) -> None:
        self._root, self._entry, self._older_than, self._in_use = root, entry, older_than, in_use
        self._times = times or LockTimes()
        self._final = root / entry.name
        self._gone = root / f".{entry.name}.removed"
        self._lock = FolderLock(
            Store(self._final).lock,
            halt=halt,
            describe=lambda: "It looks whether the folder may go.",
            times=self._times,
            makes_room=True,
        )

    def run(self) -> str | None:
        """Why it is kept, or None when it is gone."""
        if self._is_fetched_now():
            return "being fetched"
        waits = iter(range(round(2 * self._times.dead_seconds / self._times.poll_seconds)))
        if not self._lock.acquire(give_up=lambda: next(waits, None) is None, say=lambda _: None):
            return "being fetched"
        try:
            return self._finish_earlier() if self._entry.state == "removed" else self._remove()
        except HaltedError:
            if not self._lock.lost:
                raise
            return "being fetched"
        finally:
            self._lock.release()

    def _is_fetched_now(self) -> bool:
        """Whether the lock's holder has written lately, by the volume's clock: there is no need to wait for its silence, then."""
        try:
            beats = [path.stat().st_mtime for path in Store(self._final).lock.iterdir()]
            held = self._lock.is_held()
        except FileNotFoundError:
            return False
        return held and _volume_time(self._root) - max(beats, default=0.0) < self._times.dead_seconds

    def _remove(self) -> str | None:
        path = self._entry.path
        if not path.is_dir():
            return "gone already"
        if kept := self._look(path):
            return kept
        self._lock.require_held()
        shutil.rmtree(self._gone, ignore_errors=True)
        path.rename(self._gone)
        try:
            kept = self._look(self._gone)
        except BaseException:  # whoever cannot be asked any more may be using it
            self._put_back(path)
            raise
        if kept is not None:
            self._put_back(path)
            return kept
        self._delete()
        return None

    def _look(self, path: Path) -> str | None:
        """Both rules, asked afresh. The lock keeps fetches out; a pod that finds a folder complete takes none, and leaves its time."""
        idle = _volume_time(self._root) - _last_used(path)
        used = self._in_use()
        return _why_kept(Entry(**{**vars(self._entry), "idle_seconds": idle}), self._older_than, used)

    def _put_back(self, path: Path) -> None:
        try:
            self._gone.rename(path)
        except OSError:
            if not path.exists():
                raise
            self._delete()  # fetched again meanwhile, by whoever took the lock

    def _finish_earlier(self) -> str | None:
        """What somebody who was killed has left: whole, it gets its name back if it is used and nothing else has it."""
        if not self._gone.is_dir():
            return "gone already"  # it was another one's, who was at work on it when we looked
        whole = (self._gone / RECEIPT_FILE).is_file() and not (self._gone / ".state").exists()
        if whole and not self._final.exists() and self._entry.name in self._in_use():
            self._gone.rename(self._final)
            return "in use"
        self._delete()
        return None

    def _delete(self) -> None:
        """The receipt first: what has none is never put back."""
        (self._gone / RECEIPT_FILE).unlink(missing_ok=True)
        shutil.rmtree(self._gone)


def _entries(root: Path, now: float) -> Iterator[Entry]:
    for path in root.iterdir():
        finished, other = _FINISHED.fullmatch(path.name), _OTHERS.fullmatch(path.name)
        if path.is_symlink() or not path.is_dir():
            continue
        try:
            if finished is not None and (path / RECEIPT_FILE).is_file():
                yield _entry(path, finished[1], "finished", now)
            elif other is not None:
                yield _entry(path, other[1], "partial" if other[2] == "partial" else "removed", now)
        except FileNotFoundError:  # it got another name while we looked
            continue


def _entry(path: Path, name: str, state: State, now: float) -> Entry:
    receipt = Store(path).read_receipt()
    return Entry(
        name=name,
        state=state,
        path=path,
        source=None if receipt is None else receipt.uri,
        size_bytes=sum(found.st_blocks * 512 for found in _stats(path)),
        idle_seconds=max(0.0, now - _last_used(path)),
    )


def _last_used(path: Path) -> float:
    """When a fetch last looked at a finished folder (it touches the receipt) or wrote anything to one that is not finished."""
    try:
        return (path / RECEIPT_FILE).stat().st_mtime
    except FileNotFoundError:
        return max(path.stat().st_mtime, *(found.st_mtime for found in _stats(path)), 0.0)


def _stats(path: Path) -> Iterator[os.stat_result]:
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                yield os.lstat(os.path.join(folder, name))  # noqa: PTH118 - there may be many
            except FileNotFoundError:
                continue


def _volume_time(root: Path) -> float:
    """The time that the volume gives what is written now: times of files compare with it, whatever this machine's clock says."""
    if not root.is_dir():
        raise FetchError(f"{root} is not a folder: name the folder where the cache volume is mounted")
    clock = root / CLOCK_FILE
    try:
        clock.touch()
        return clock.stat().st_mtime
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return time.time()  # nothing can be removed there, and a list need not be so exact
