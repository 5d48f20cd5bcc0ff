"""What a person sees while the tool works: one line when a step starts, with the time it usually takes, a heartbeat
every 20 seconds, one line when it ends. Output of programs goes to log files, of which a failure prints the tail."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from e2e.cluster.errors import CommandError

HEARTBEAT_S = 20.0
TAIL_LINES = 25


def tail(text: str, *, lines: int = TAIL_LINES) -> str:
    """The last lines of a log."""
    return "\n".join(text.splitlines()[-lines:])


class Progress:
    """Prints steps to standard error; safe to use from several threads."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self.durations_s: dict[str, float] = {}

    def say(self, text: str) -> None:
        """Print one line with the time since the tool started."""
        with self._lock:
            print(f"[{time.monotonic() - self._start:6.1f}s] {text}", file=self._stream, flush=True)

    @contextlib.contextmanager
    def step(self, title: str, *, usual_s: float) -> Iterator[None]:
        """Announce a step, show that it is alive, report how long it took."""
        self.say(f"{title} (usually {_duration(usual_s)})")
        begin = time.monotonic()
        done = threading.Event()
        beat = threading.Thread(target=self._heartbeat, args=(title, begin, done), daemon=True)
        beat.start()
        try:
            yield
        except BaseException:
            self.say(f"FAILED {title} after {time.monotonic() - begin:.1f}s")
            raise
        finally:
            done.set()
        self.durations_s[title] = time.monotonic() - begin
        self.say(f"done: {title} in {self.durations_s[title]:.1f}s")

    def _heartbeat(self, title: str, begin: float, done: threading.Event) -> None:
        while not done.wait(HEARTBEAT_S):
            self.say(f"... {title}: {time.monotonic() - begin:.0f}s so far")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 120 else f"{seconds / 60:.0f} min"


def run(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: IO[bytes] | None = None,
) -> None:
    """Run a program with its output in `log` (appended); raise CommandError with the tail of what it printed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        begin = sink.tell()
        finished = subprocess.run(
            [str(part) for part in command],
            stdin=stdin if stdin is not None else subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, **env) if env else None,
            cwd=cwd,
            check=False,
        )
    if finished.returncode != 0:
        with log.open("rb") as source:
            source.seek(begin)
            output = source.read().decode(errors="replace")
        raise CommandError(command=_shown(command), code=finished.returncode, log=log, tail=tail(output))


def output(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout_s: float = 120.0,
) -> str:
    """Standard output of a short program; raise CommandError when it fails or takes too long."""
    try:
        finished = subprocess.run(
            [str(part) for part in command],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            env=dict(os.environ, **env) if env else None,
            cwd=cwd,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(command=_shown(command), code=124, log=None, tail=f"no answer in {timeout_s}s") from error
    except OSError as error:
        raise CommandError(command=_shown(command), code=127, log=None, tail=str(error)) from error
    if finished.returncode != 0:
        text = finished.stderr or finished.stdout
        raise CommandError(command=_shown(command), code=finished.returncode, log=None, tail=tail(text))
    return finished.stdout


def succeeds(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> bool:
    """Whether a short program exits with 0."""
    try:
        output(command, env=env, timeout_s=timeout_s)
    except CommandError:
        return False
    return True


def _shown(command: Sequence[str | Path]) -> str:
    text = " ".join(str(part) for part in command)
    return text if len(text) <= 200 else f"{text[:200]}..."
