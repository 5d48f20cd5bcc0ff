"""The planned end: not ready at once; new requests are still answered until the endpoints are gone; then only live ones, up to the
deadline; then the rest is cut with an error event. A second signal cuts at once."""

import asyncio
import logging
import time
from collections.abc import Callable

from pratique_contract.serving import DrainSpec
from pratique_server.api.live import LiveRequests
from pratique_server.management.status import PodStatus

_log = logging.getLogger(__name__)


class Drain:
    """``hurry`` may be set at any time, from the event loop."""

    def __init__(
        self, spec: DrainSpec, *, status: PodStatus, live: LiveRequests, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spec = spec
        self._status = status
        self._live = live
        self._clock = clock
        self.hurry = asyncio.Event()

    async def run(self) -> int:
        """Return how many requests were live when time was up."""
        deadline = self._clock() + self._spec.deadline_seconds
        self._status.begin_drain()
        noticed = self._status.draining_since
        assert noticed is not None  # begin_drain set it
        _log.info("Draining: %d requests are live", len(self._live))
        # Endpoints are taken away by others, and clients learn of it late: refusing at once would be their error.
        if self._status.verified().ready:  # a pod that never was ready has no endpoints
            await self._hurried(min(noticed + self._spec.pre_stop_seconds, deadline))
        self._status.refusing = True
        waiting = asyncio.create_task(self._live.wait_empty())
        hurry = asyncio.create_task(self.hurry.wait())
        await asyncio.wait(
            {waiting, hurry}, timeout=max(deadline - self._clock(), 0), return_when=asyncio.FIRST_COMPLETED
        )
        for task in (waiting, hurry):
            task.cancel()
        return len(self._live)

    async def _hurried(self, until: float) -> None:
        """Sleep until a moment, or until hurried."""
        try:
            async with asyncio.timeout(max(until - self._clock(), 0)):
                await self.hurry.wait()
        except TimeoutError:
            return
