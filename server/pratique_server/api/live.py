"""The requests that are being answered now. One request id is live at most once; a drain waits until none is left."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pratique_server.errors import DuplicateIdError


class LiveRequests:
    """Owned by the event loop; not thread-safe."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._ids)

    @contextmanager
    def hold(self, request_id: str) -> Iterator[None]:
        """Hold the id while its request lives. Raises ``DuplicateIdError`` when another one does."""
        if request_id in self._ids:
            raise DuplicateIdError("A request with this x-request-id is being answered")
        self._ids.add(request_id)
        self._empty.clear()
        try:
            yield
        finally:
            self._ids.discard(request_id)
            if not self._ids:
                self._empty.set()

    async def wait_empty(self) -> None:
        await self._empty.wait()
