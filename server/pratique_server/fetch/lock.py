"""One fetch of a folder at a time, among pods on any number of nodes that share a volume.

No ``flock``: not every network file system has it. What all have is a file that exactly one creates (``O_EXCL``). A lock is a folder of
numbered files; whoever creates the highest number holds it, and writes a new beat into it every few seconds. A waiter that sees the same
beat for ``dead_seconds`` of its own clock creates the next number: exactly one waiter can. The old holder, should it still live, finds a
higher number at its next beat, and stops. Clocks of different nodes are never compared.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pratique_contract.canonical import JSON_ERRORS
from pratique_server.fetch.errors import DISK_FULL_ERRORS
from pratique_server.fetch.halt import Halt
from pratique_server.fetch.numbers import whole_number

_RELEASED: Final = "released"
IN_POD: Final = "KUBERNETES_SERVICE_HOST"
_HOLDER_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class LockTimes:
    """``dead_seconds`` is many beats: a busy node or a slow network file system is not a dead pod."""

    beat_seconds: float = 3.0
    poll_seconds: float = 1.0
    dead_seconds: float = 45.0


@dataclass(frozen=True)
class Holder:
    """What the lock's newest file says. ``line`` is how far the holder is."""

    number: int
    beat: str
    name: str
    line: str
    process: dict[str, Any]


class FolderLock:
    """``acquire`` waits; ``release`` lets the next one in. ``lost`` is set when another has taken the lock over."""

    def __init__(
        self,
        folder: Path,
        *,
        halt: Halt,
        describe: Callable[[], str],
        times: LockTimes | None = None,
        name: str | None = None,
        makes_room: bool = False,
    ) -> None:
        """``makes_room``: hold it on a full volume, too, where no beat can be written, for as long as others wait for a silent one."""
        self._folder = folder
        self._makes_room = makes_room
        self._halt = halt
        self._describe = describe
        self._times = times or LockTimes()
        self._name = name or socket.gethostname()
        self._token = secrets.token_hex(8)
        self._number = 0
        self._beats = 0
        self._beaten_at = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost = False
        # Stops what is done under this lock, when the lock is lost; a signal to the process stops it too.
        self.halt = halt.child()

    def acquire(self, *, give_up: Callable[[], bool], say: Callable[[str], None]) -> bool:
        """Wait until the lock is ours (True), or until ``give_up`` says that it is no longer needed (False)."""
        seen, seen_at = "", time.monotonic()
        while True:
            self._halt.check()
            self._folder.mkdir(parents=True, exist_ok=True)
            holder = self._read()
            if holder is None or holder.beat == _RELEASED or self._is_gone(holder):
                if self._take(0 if holder is None else holder.number):
                    return True
                continue
            if give_up():
                return False
            if holder.beat != seen:
                seen, seen_at = holder.beat, time.monotonic()
            silent = time.monotonic() - seen_at
            if silent > self._times.dead_seconds:
                say(f"Taking over from {holder.name}, which gave no sign of life for {silent:.0f} s")
                if self._take(holder.number):
                    return True
                continue
            say(f"Waiting for {holder.name}, which fetches the same source. {holder.line}".strip())
            self._halt.wait(self._times.poll_seconds)

    def release(self) -> None:
        """Let go; harmless when the lock is not ours any more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._times.beat_seconds * 2)
        if not self.lost and self._number:
            try:
                self._write(_RELEASED)
            except OSError:  # then the next one waits until our silence says the same
                if self._beats == 0:  # it never said anything: as it was before we came
                    with suppress(OSError):
                        self._path(self._number).unlink()

    def is_held(self) -> bool:
        """Whether somebody holds it, as far as the files say; raises ``FileNotFoundError`` when there never was a lock."""
        holder = self._read()
        return holder is not None and holder.beat != _RELEASED and not self._is_gone(holder)

    def require_held(self) -> None:
        """Stop whoever is about to publish under a lock that is not certainly ours: another may be at work on the same files."""
        if self._newest() != self._number or time.monotonic() - self._beaten_at > self._times.dead_seconds / 2:
            self._lose()
        self.halt.check()

    def _take(self, above: int) -> bool:
        """Create the number after ``above``; False when another was faster."""
        number = above + 1
        path = self._path(number)
        created_at = time.monotonic()
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except (FileExistsError, FileNotFoundError):
            return False
        os.close(descriptor)
        if self._newest() != number:  # somebody took, released and tidied up since we looked
            return False
        self._number = number
        try:
            self._beat()
        except OSError as error:
            if not self._makes_room or error.errno not in DISK_FULL_ERRORS:
                # On a full volume: a file without a beat would be waited for as for a pod that lives.
                self._number = 0
                path.unlink(missing_ok=True)
                raise
            self._beaten_at = created_at
        else:
            for old in range(max(1, number - 8), number):
                self._path(old).unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._keep_beating, name="lock", daemon=True)
        self._thread.start()
        return True

    def _keep_beating(self) -> None:
        while not self._stop.wait(self._times.beat_seconds):
            try:
                if self._newest() != self._number:
                    self._lose()
                    return
                self._beat()
            except OSError:
                # A volume that is away for a moment. Whoever waits counts our silence; so do we.
                if time.monotonic() - self._beaten_at > self._times.dead_seconds / 2:
                    self._lose()
                    return

    def _lose(self) -> None:
        self.lost = True
        self.halt.stop()

    def _beat(self) -> None:
        self._write(f"{self._token}-{self._beats + 1}")
        self._beats += 1
        self._beaten_at = time.monotonic()

    def _write(self, beat: str) -> None:
        value = {"beat": beat, "name": self._name, "line": self._describe(), "process": _this_process()}
        path = self._path(self._number)
        partial = path.with_name(f".{self._token}.new")
        try:
            partial.write_text(json.dumps(value), encoding="utf-8")
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)  # every attempt would leave another one
            raise

    def _read(self) -> Holder | None:
        number = self._newest()
        if number == 0:
            return None
        try:
            with self._path(number).open("rb") as file:
                value = json.loads(file.read(_HOLDER_BYTES_MAX))
            return Holder(number, str(value["beat"]), str(value["name"]), str(value["line"]), dict(value["process"]))
        except (OSError, *JSON_ERRORS, KeyError, TypeError):
            # Just created, or its holder died between two system calls: counts as alive until it has been silent long enough.
            return Holder(number, f"none of {number}", "another pod", "", {})

    def _newest(self) -> int:
        """The highest number there is; 0 when there is none."""
        numbers = (whole_number(entry.name) for entry in os.scandir(self._folder))
        return max((number for number in numbers if number is not None), default=0)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}"

    def _is_gone(self, holder: Holder) -> bool:
        """Whether the holder is certainly no longer there, so that there is no need to wait: a process of this very process-id space
        that has ended, or an earlier container of this very pod (in a pod the host name is the pod's own)."""
        here, there = _this_process(), holder.process
        if not there or here["boot"] is None or here["boot"] != there.get("boot"):
            return False
        if here["pids"] is None or here["pids"] != there.get("pids"):
            return IN_POD in os.environ and holder.name == self._name
        return _started(there.get("pid")) != there.get("started")


def _this_process() -> dict[str, Any]:
    """Which process this is: machine boot, process-id space, id, and start time (ids are used again)."""
    pid = os.getpid()
    return {"boot": _boot_id(), "pids": _pid_space(), "pid": pid, "started": _started(pid)}


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _pid_space() -> int | None:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


def _started(pid: Any) -> str | None:
    """Clock ticks after boot at which a process started; None when there is none."""
    try:
        text = Path(f"/proc/{int(pid)}/stat").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, TypeError):
        return None
    fields = text.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):  # ended, not yet buried by its parent
        return None
    return fields[19]
