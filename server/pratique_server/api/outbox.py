"""Bytes on their way to one client: what the socket does not take yet waits here, merged, up to a limit.

The producer never waits. When the limit is passed, or the client takes nothing for too long, this stream alone is cut.
"""

import asyncio

from starlette.types import Send

from pratique_server.api.sse import KEEP_ALIVE
from pratique_server.errors import SlowReaderError


class Outbox:
    """One producer, one consumer, one event loop."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pending = bytearray()
        self._closed = False
        self._changed = asyncio.Event()

    def put(self, data: bytes) -> None:
        """Raises ``SlowReaderError`` when the client has left too much unread. One event is never too much by itself."""
        if self._pending and len(self._pending) + len(data) > self._bytes_max:
            raise SlowReaderError("The client read too slowly")
        self._pending += data
        self._changed.set()

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        self._changed.set()

    async def take(self) -> bytes | None:
        """Everything that waits, as soon as something does; None after the end."""
        while not self._pending:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._pending)
        self._pending.clear()
        return data


async def drain_to_client(outbox: Outbox, send: Send, *, stall_seconds_max: float, comment_seconds: float) -> None:
    """Write until the outbox ends. A comment goes out when nothing did for a while, so that proxies keep the connection."""
    while True:
        try:
            async with asyncio.timeout(comment_seconds):
                data = await outbox.take()
        except TimeoutError:
            data = KEEP_ALIVE
        if data is None:
            break
        await _send(send, data, more=True, seconds_max=stall_seconds_max)
    await _send(send, b"", more=False, seconds_max=stall_seconds_max)


async def _send(send: Send, data: bytes, *, more: bool, seconds_max: float) -> None:
    try:
        async with asyncio.timeout(seconds_max):
            await send({"type": "http.response.body", "body": data, "more_body": more})
    except TimeoutError as error:
        raise SlowReaderError("The client took nothing for too long") from error
