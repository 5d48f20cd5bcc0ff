"""The requests that are being answered now. One request id is live at most once; a drain waits until none is left; what the server
does for itself gives way to the users among them."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pratique_server.errors import DuplicateIdError


class LiveRequests:
    """Owned by the event loop; not thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ids: set[str] = set()
        self._open = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._users = 0
        self._user = asyncio.Event()
        self._no_user = asyncio.Event()
        self._no_user.set()
        self.user_left_at: float | None = None

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

    @contextmanager
    def serve_user(self) -> Iterator[None]:
        """Count one admitted request that generates and is not the gate's own."""
        self._users += 1
        self._user.set()
        self._no_user.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self.user_left_at = self._clock()
                self._user.clear()
                self._no_user.set()

    @property
    def users(self) -> int:
        """Users' generating requests from their admission to their last byte: queued ones too."""
        return self._users

    async def wait_user(self) -> None:
        """Return at once while a user is served, else when one arrives."""
        await self._user.wait()

    async def wait_no_user(self) -> None:
        await self._no_user.wait()

    async def wait_empty(self) -> None:
        await self._empty.wait()
