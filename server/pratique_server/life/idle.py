"""Time that no user wants: what the server does for itself (re-verifying, recording) runs in it and gives way at once.

Idle means that no user's request is being answered or queued, and none was for ``quiet_seconds``: between two messages of a
conversation nobody should find the engine busy with the server's own affairs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pratique_server.api.live import LiveRequests

QUIET_SECONDS: Final = 2.0

T = TypeVar("T")


class GaveWayError(Exception):
    """A user's request arrived; the work was cancelled and has left nothing in the engine."""


class IdleTime:
    """``run`` is for work that may be cut at any await and begun again."""

    def __init__(
        self,
        live: LiveRequests,
        *,
        quiet_seconds: float = QUIET_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._live = live
        self._quiet_seconds = quiet_seconds
        self._clock = clock
        self._sleep = sleep

    async def wait(self) -> None:
        """Return once it has been quiet for long enough; however long that takes."""
        while True:
            await self._live.wait_no_user()
            left_at = self._live.user_left_at
            missing = 0.0 if left_at is None else self._quiet_seconds - (self._clock() - left_at)
            if missing <= 0:
                return
            await self._sleep(missing)

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Wait for idle time and do the work. Raises ``GaveWayError`` when a user arrives before it is done."""
        await self.wait()
        task, user = asyncio.ensure_future(work()), asyncio.ensure_future(self._live.wait_user())
        try:
            await asyncio.wait({task, user}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise GaveWayError("A user's request arrived")
        finally:
            for waiter in (task, user):
                waiter.cancel()
            await asyncio.gather(task, user, return_exceptions=True)
