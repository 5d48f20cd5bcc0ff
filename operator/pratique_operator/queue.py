"""Which service gets its pass when. One asyncio task owns all waiting: triggers, retries with backoff, resync and wall-clock waits.

A service has at most one pass at a time; triggers during a pass make it run again afterwards, however many there were.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final

from pratique_operator import metrics
from pratique_operator.errors import ConflictError, OperatorError
from pratique_operator.kinds import Key
from pratique_operator.reconcile import Outcome

LOG = logging.getLogger(__name__)

Work = Callable[[Key], Awaitable[Outcome]]

# One change of a spec causes a burst of events; wait a moment so that they share one pass.
COALESCE_SECONDS: Final = 0.05
# A rollout trickles: Deployment, pods and endpoints report step by step, and each pass is several calls. The first event is answered at
# once, what follows it shares the next pass.
SPACING_SECONDS: Final = 0.3
BACKOFF_SECONDS_MIN: Final = 0.5
BACKOFF_SECONDS_MAX: Final = 60.0
IDLE_SECONDS_MAX: Final = 5.0
# A pass takes a fraction of a second. Where it takes longer, something does not answer, and a stop is not the time to wait for it.
STOP_SECONDS: Final = 5.0
JITTER: Final = 0.1


class ReconcileQueue:
    """Triggers in, passes out. All methods are called from the event loop's thread."""

    def __init__(self, work: Work, *, workers: int, random: Random | None = None) -> None:
        self._work = work
        self._workers = workers
        self._random = random or Random()  # noqa: S311 - jitter, not a secret
        self._due: dict[Key, float] = {}
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._failures: dict[Key, int] = {}
        self._started: dict[Key, float] = {}
        self._wake = asyncio.Event()
        self._beat = time.monotonic()

    @property
    def heartbeat_age_seconds(self) -> float:
        """How long ago the task last went round; it does so every few seconds even when idle."""
        return time.monotonic() - self._beat

    def trigger(self, key: Key) -> None:
        """Ask for a pass soon, but not right after the last one began."""
        spaced = self._started.get(key, 0.0) + SPACING_SECONDS - time.monotonic()
        self._schedule(key, max(COALESCE_SECONDS, spaced))

    def _schedule(self, key: Key, delay_seconds: float) -> None:
        due = time.monotonic() + delay_seconds
        self._due[key] = min(due, self._due.get(key, due))
        self._wake.set()

    async def run(self) -> None:
        """Go round until cancelled; then let the running passes end, for ``STOP_SECONDS`` at most."""
        try:
            while True:
                self._beat = time.monotonic()
                self._start_due()
                metrics.QUEUE_LENGTH.set(len(self._running) + sum(due <= self._beat for due in self._due.values()))
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._wait_seconds()):
                        await self._wake.wait()
        finally:
            await self._end_passes()

    async def _end_passes(self) -> None:
        """What a pass leaves undone is found by the next operator's first pass."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=STOP_SECONDS)
        for key in self._running:
            LOG.warning("Pass was not over %.0f s after the stop: %s", STOP_SECONDS, key)

    def _start_due(self) -> None:
        now = time.monotonic()
        ready = sorted(
            (due, str(key), key) for key, due in self._due.items() if due <= now and key not in self._running
        )
        for _, _, key in ready[: max(0, self._workers - len(self._running))]:
            del self._due[key]
            self._started[key] = now
            self._running[key] = asyncio.create_task(self._pass(key), name=f"reconcile {key}")

    def _wait_seconds(self) -> float:
        if len(self._running) >= self._workers:
            return IDLE_SECONDS_MAX
        now = time.monotonic()
        waits = [due - now for key, due in self._due.items() if key not in self._running]
        return max(0.0, min([IDLE_SECONDS_MAX, *waits]))

    async def _pass(self, key: Key) -> None:
        try:
            outcome = await self._work(key)
        except Exception as error:  # noqa: BLE001 - whatever one service's pass raises must not stop the others
            self._retry(key, error)
        else:
            self._failures.pop(key, None)
            if outcome.requeue_seconds is None:
                del self._started[key]
            else:
                self._schedule(key, outcome.requeue_seconds * self._random.uniform(1 - JITTER, 1))
        finally:
            del self._running[key]
            self._wake.set()

    def _retry(self, key: Key, error: Exception) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN * 2 ** min(failures, 10))
        if isinstance(error, ConflictError):
            LOG.debug("Pass met a newer object: %s: %s", key, error)
        elif isinstance(error, OperatorError):
            LOG.warning("Pass failed: %s: %s; again in %.1f s", key, error, delay)
        else:
            LOG.error("Pass failed: %s; again in %.1f s", key, delay, exc_info=error)
        self._schedule(key, delay * self._random.uniform(1 - JITTER, 1))
