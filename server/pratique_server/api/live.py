"""The requests that are being answered now. One request id is live at most once; a drain waits until none is left."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pratique_server.errors import DuplicateIdError


class LiveRequests:
    """Owned by the event loop; not thread-safe."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._open = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        """Requests whose answer is not complete, from the first header on."""
        return self._open

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count one request from its arrival to its last byte."""
        self._open += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._empty.set()

    @contextmanager
    def hold(self, request_id: str) -> Iterator[None]:
        """Hold the id while its request lives. Raises ``DuplicateIdError`` when another one does."""
        if request_id in self._ids:
            raise DuplicateIdError("A request with this x-request-id is being answered")
        self._ids.add(request_id)
        try:
            yield
        finally:
            self._ids.discard(request_id)

    async def wait_empty(self) -> None:
        await self._empty.wait()
