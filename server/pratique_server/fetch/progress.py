"""How far a download is: counted by many threads, said in one line for the log, the lock file and ``/verdict``.

The rate is that of the last half minute, so that a stall shows at once and a slow start is forgotten.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from pratique_contract.reasons import Reason
from pratique_contract.verdict import Verdict, VerdictResult

WINDOW_SECONDS: Final = 30.0
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


class Progress:
    """``current()`` is the pending verdict that the management port serves."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._text = "Starting to fetch"
        self._total: int | None = None
        self._done = 0
        self._counting = False
        self._samples: deque[tuple[float, int]] = deque()
        self._note, self._note_until = "", 0.0
        self._told = ""

    def say(self, text: str, *, told: bool = False) -> None:
        """Tell what is being done, where nothing is counted. ``told``: the log has it already, in words of its own."""
        with self._lock:
            self._text, self._counting = text, False
            if told:
                self._told = text

    def start(self, text: str, *, total: int | None, done: int = 0) -> None:
        """Begin to count bytes; ``done`` are there already and count for the percentage but not for the rate."""
        with self._lock:
            self._text, self._total, self._done, self._counting = text, total, done, True
            self._samples = deque([(self._clock(), done)])

    def note(self, text: str, *, seconds: float) -> None:
        """Add a remark that holds for a while: why nothing is coming."""
        with self._lock:
            self._note, self._note_until = text, self._clock() + seconds

    def add(self, count: int) -> None:
        """Count bytes; negative when bytes turned out to be wrong."""
        with self._lock:
            self._done += count

    def line(self) -> str:
        """One sentence: what, how much of how much, how fast, how long still."""
        with self._lock:
            if not self._counting:
                return self._text
            now = self._clock()
            self._samples.append((now, self._done))
            while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW_SECONDS:
                self._samples.popleft()
            since, before = self._samples[0]
            rate = max(0.0, (self._done - before) / (now - since)) if now > since else 0.0
            note = f"; {self._note}" if now < self._note_until else ""
            return f"{self._text}: {describe(self._done, self._total, rate)}{note}"

    def news(self) -> str | None:
        """The line, where the log does not have it yet: for its only reader, which logs it."""
        line = self.line()
        with self._lock:
            if line == self._told:
                return None
            self._told = line
        return line

    def current(self) -> Verdict:
        return Verdict(result=VerdictResult.PENDING, reason=Reason.DOWNLOADING, message=self.line())


def describe(done: int, total: int | None, rate: float) -> str:
    """``1.2 of 4.5 GiB (27 %), 85.3 MB/s, about 39 s left``."""
    speed = f"{rate / 1e6:.1f} MB/s"
    if total is None:
        return f"{size_text(done)}, {speed}"
    percent = 100 * min(done, total) // total if total else 100
    left = f", about {_time_text((total - done) / rate)} left" if rate > 0 and total > done else ""
    return f"{size_text(done)} of {size_text(total)} ({percent} %), {speed}{left}"


def size_text(count: float) -> str:
    """Bytes in the unit a person would use."""
    value, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _time_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
