"""Moves the bytes: several connections at once over the parts of all files, each resumed where it stopped, each file read back and hashed.

A worker takes a part, asks for what is missing of it, writes what comes where it belongs, and asks again when the peer stops early, stalls
or asks for patience. When a file's last part is there, the file is read from the disk; if it is not what the source says, it is fetched
once more from nothing. The first error that another attempt cannot cure stops all workers.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import httpx

from pratique_server.fetch.errors import (
    CorruptError,
    FetchError,
    HaltedError,
    explain_os_error,
)
from pratique_server.fetch.halt import Halt
from pratique_server.fetch.hashing import hash_file
from pratique_server.fetch.part_reader import Job, PartReader
from pratique_server.fetch.parts import PART_BYTES_MIN, Part, load_parts, plan_parts, save_parts
from pratique_server.fetch.progress import Progress
from pratique_server.fetch.remote import Remote, RemoteFile
from pratique_server.fetch.retry import Attempts, RetryPolicy, StallRule, is_rate_limit
from pratique_server.fetch.store import ARCHIVES_FOLDER, Store

SAVE_SECONDS: Final = 1.0
READ_BACK_SECONDS: Final = 3600.0  # longer than any file takes
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TransferLimits:
    """How many connections, how patient. Tests pass smaller parts and shorter pauses."""

    connections: int = 8
    stall: StallRule = field(default_factory=lambda: StallRule(seconds=30.0, bytes_min=30 * 1024))
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    part_bytes: int = PART_BYTES_MIN


@dataclass(frozen=True)
class FetchedFile:
    """A file that was read back and is what its source says."""

    file: RemoteFile
    size: int
    sha256: str


class Transfer:
    """One use: ``run`` fetches the files into the store's partial folder. ``check_room`` raises when the volume is all but full."""

    def __init__(
        self,
        remote: Remote,
        *,
        client: httpx.Client,
        store: Store,
        progress: Progress,
        halt: Halt,
        limits: TransferLimits,
        check_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._check_room = check_room
        self._progress = progress
        self._halt = halt.child()
        self._limits = limits
        self._tasks: deque[tuple[Job, Part | None]] = deque()
        self._open = 0
        self._changed = threading.Condition()
        self._fetched: list[FetchedFile] = []
        self._error: BaseException | None = None
        self._hold_until = 0.0
        self._reader = PartReader(
            remote,
            client=client,
            progress=progress,
            halt=self._halt,
            stall=limits.stall,
            on_ranges=self._release_others,
            on_bytes=self._save_sometimes,
        )

    def prepare(self, files: Sequence[RemoteFile]) -> int:
        """Look what is there already; returns how many bytes are still to come (of the files whose size is known)."""
        missing = 0
        self._jobs = [self._make_job(file) for file in files]
        for job in self._jobs:
            missing += sum(part.missing or 0 for part in job.parts)
        return missing

    def run(self, text: str) -> list[FetchedFile]:
        """Fetch what ``prepare`` was given. Raises ``FetchError`` or ``HaltedError``; what has come stays for the next attempt."""
        sizes = [job.file.size for job in self._jobs]
        total = sum(size for size in sizes if size is not None) if None not in sizes else None
        self._progress.start(text, total=total, done=sum(part.done for job in self._jobs for part in job.parts))
        for job in self._jobs:
            self._submit(job)
        count = max(1, min(self._limits.connections, sum(len(job.parts) for job in self._jobs)))
        workers = [threading.Thread(target=self._work, name=f"fetch-{n}", daemon=True) for n in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for job in self._jobs:
            self._close(job)
        if self._error is not None:
            raise self._error
        self._halt.check()
        return self._fetched

    def _make_job(self, file: RemoteFile) -> Job:
        name = f"{ARCHIVES_FOLDER}/{file.path}" if file.archive else file.path
        data = self._store.data_file(name)
        state = self._store.state_file(name)
        parts = load_parts(state, version=file.version, size=file.size, data=data)
        if parts is None:
            data.unlink(missing_ok=True)
            state.unlink(missing_ok=True)
            parts = plan_parts(file.size, part_bytes=self._limits.part_bytes)
        for part in parts:
            part.finished = part.complete
        return Job(file, name, parts)

    def _submit(self, job: Job) -> None:
        """Queue what is missing. The first part goes alone: its answer says whether the peer can do ranges."""
        self._save(job)
        missing = [part for part in job.parts if not part.complete]
        with self._changed:
            self._tasks.append((job, missing[0] if missing else None))
            self._open += 1
            self._changed.notify()

    def _open_file(self, job: Job) -> None:
        """Only when a worker turns to it: a source may have more files than a process may have open."""
        with job.lock:
            if job.descriptor < 0:
                # NOFOLLOW: the volume is shared, and a link in it is not ours.
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                job.descriptor = os.open(self._store.data_file(job.name), flags, 0o644)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._tasks and self._open and self._error is None:
                    self._changed.wait(0.5)
                    if self._halt.stopped:
                        return
                if not self._open or self._error is not None:
                    return
                job, part = self._tasks.popleft()
            try:
                self._halt.check()
                if part is None:
                    self._verify(job)
                else:
                    self._fetch_part(job, part)
            except BaseException as error:  # noqa: BLE001 - a thread's error is the transfer's
                self._fail(job, error)
                return

    def _fail(self, job: Job, error: BaseException) -> None:
        if isinstance(error, OSError):
            error = explain_os_error(error, str(self._store.path))
        self._save_quietly(job)
        with self._changed:
            # The others stop because of the first one: what they say then is no news.
            if self._error is None or isinstance(self._error, HaltedError):
                self._error = error
            self._changed.notify_all()
        self._halt.stop()

    # One part

    def _fetch_part(self, job: Job, part: Part) -> None:
        self._open_file(job)
        attempts = Attempts(self._limits.retry)
        while not part.complete:
            before = part.done
            try:
                self._hold()
                self._reader.read(job, part)
            except FetchError as error:
                self._save(job)
                pause = attempts.after(error, gained=part.done - before)
                if not is_rate_limit(error) or self._hold_back(pause):
                    _log.warning("Trying again in %.1f s: %s: %s", pause, error.reason, error.message)
                self._halt.wait(pause)
        os.fdatasync(job.descriptor)
        self._save(job)
        self._finish_part(job, part)

    def _hold_back(self, pause: float) -> bool:
        """Let no connection ask for a while; False when the peer has told another connection just before, and so the log."""
        with self._changed:
            now = time.monotonic()
            first = self._hold_until <= now
            self._hold_until = max(self._hold_until, now + pause)
        self._progress.note(f"asked to wait {pause:.0f} s", seconds=pause)
        return first

    def _hold(self) -> None:
        """Wait as long as the peer wants no requests at all."""
        while (left := self._hold_until - time.monotonic()) > 0:
            self._halt.wait(left)

    def _finish_part(self, job: Job, part: Part) -> None:
        """Queue what is next of this file: its hash check, or another part where the parts are not queued already."""
        with job.lock:
            # Only now: a part whose last byte is written may still be on its way to the disk in another worker's hands.
            part.finished = True
            missing = [other for other in job.parts if not other.finished]
            if missing and job.ranged:
                return
        with self._changed:
            # Before other files: one that is begun is ended, hashed while the page cache has it, and closed.
            self._tasks.appendleft((job, missing[0] if missing else None))
            self._changed.notify()

    def _release_others(self, job: Job, part: Part) -> None:
        """Ranges work: the file's other parts may go side by side. Done once, by the first part that was queued."""
        with job.lock:
            others = [other for other in job.parts if other is not part and not other.complete]
            first, job.ranged = not job.ranged, True
        if not first:
            return
        with self._changed:
            # Before other files: a large file begun is sooner ended, and its hash sooner known.
            self._tasks.extendleft((job, other) for other in reversed(others))
            self._changed.notify_all()

    # The whole file

    def _verify(self, job: Job) -> None:
        """Read the file back from the disk; fetch it once more when it is not what the source says."""
        self._open_file(job)  # an empty file came with no part
        path = self._store.data_file(job.name)
        expected = job.file.checksum
        algorithms = [expected.algorithm] if expected is not None else []
        self._progress.note(f"reading {job.file.path} back", seconds=READ_BACK_SECONDS)
        size, digests = hash_file(path, algorithms, on_bytes=lambda _: self._halt.check())
        self._progress.note("", seconds=0)
        problem = None
        if job.file.size is not None and size != job.file.size:
            problem = f"{job.file.path} has {size} bytes; the source says {job.file.size}"
        elif expected is not None and digests[expected.algorithm] != expected.value:
            observed = digests[expected.algorithm]
            problem = f"{job.file.path} is {expected.algorithm}:{observed}; the source says {expected}"
        if problem is None:
            self._done(job, FetchedFile(job.file, size, digests["sha256"]))
            return
        self._start_over(job)
        if job.again:
            raise CorruptError(
                f"{problem}; it was fetched twice: a proxy or mirror in between changes it, or the source itself is damaged"
            )
        job.again = True
        _log.warning("Fetching again from nothing: %s", problem)
        self._submit_again(job)

    def _start_over(self, job: Job) -> None:
        """Forget the bytes that came."""
        self._close(job)
        self._progress.add(-sum(part.done for part in job.parts))
        self._store.data_file(job.name).unlink(missing_ok=True)
        self._store.state_file(job.name).unlink(missing_ok=True)
        job.parts = plan_parts(job.file.size, part_bytes=self._limits.part_bytes)
        job.ranged = False

    def _submit_again(self, job: Job) -> None:
        with self._changed:
            self._open -= 1
        self._submit(job)

    def _done(self, job: Job, fetched: FetchedFile) -> None:
        self._close(job)
        with self._changed:
            self._fetched.append(fetched)
            self._open -= 1
            self._changed.notify_all()

    def _save(self, job: Job) -> None:
        with job.lock:
            job.saved_at = time.monotonic()
            save_parts(
                self._store.state_file(job.name), version=job.file.version, size=job.file.size, parts=list(job.parts)
            )

    def _save_sometimes(self, job: Job) -> None:
        if time.monotonic() - job.saved_at > SAVE_SECONDS:
            self._save(job)
            if (
                job.file.size is None
            ):  # nobody could tell beforehand whether it fits, and others write to this volume too
                self._check_room()

    def _save_quietly(self, job: Job) -> None:
        """After an error: what cannot be written now was perhaps the error."""
        try:
            self._save(job)
        except OSError:
            return

    def _close(self, job: Job) -> None:
        if job.descriptor >= 0:
            os.close(job.descriptor)
            job.descriptor = -1
