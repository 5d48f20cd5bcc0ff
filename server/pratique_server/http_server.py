"""uvicorn for both ports, with two bounds it lacks: a time limit for a request's headers, and a way to drop a connection whose client
does not read (closing politely would wait for it)."""

import asyncio
import socket
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

# Where the application finds the function that drops its connection.
ABORT_KEY: Final = "pratique_abort"
BACKLOG: Final = 2048
HEADER_BYTES_MAX: Final = 64 * 1024


def make_protocol(*, header_seconds_max: float) -> type[H11Protocol]:
    """A protocol class with the header limit bound in, as uvicorn wants a class."""

    class BoundedProtocol(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.app = _WithAbort(self.app, self)
            self._header_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            # From here uvicorn's own keep-alive timer runs until the next byte comes.
            self._stop_timer()

        def _watch_headers(self) -> None:
            """The timer runs while a request's headers are incomplete, and while the rest of a body arrives that was answered
            unread (the first such byte stops uvicorn's keep-alive timer for good); more bytes do not wind it up again."""
            answered = self.cycle is not None and self.cycle.response_complete
            if self.transport.is_closing() or not (answered or self.conn.their_state is h11.IDLE):
                self._stop_timer()
            elif self._header_timer is None:
                self._header_timer = self.loop.call_later(header_seconds_max, self.transport.abort)

        def _stop_timer(self) -> None:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None

    return BoundedProtocol


class _WithAbort:
    """Tells the application how to drop this connection."""

    def __init__(self, app: Any, protocol: H11Protocol) -> None:
        self._app: ASGIApp = app
        self._protocol = protocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ABORT_KEY] = self._protocol.transport.abort
        await self._app(scope, receive, send)


class HttpServer(uvicorn.Server):
    """Runs in the caller's event loop on a socket the caller bound; signals stay the caller's."""

    def __init__(
        self, app: ASGIApp, *, header_seconds_max: float, keep_alive_seconds: float, connections_max: int | None = None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=make_protocol(header_seconds_max=header_seconds_max),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=int(keep_alive_seconds),
                limit_concurrency=connections_max,
                h11_max_incomplete_event_size=HEADER_BYTES_MAX,
                timeout_graceful_shutdown=1,
            )
        )
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def run_on(self, sock: socket.socket) -> None:
        """Serve until ``should_exit``. Bypasses uvicorn's signal handlers: the life cycle owns SIGTERM."""
        await self._serve([sock])
