"""uvicorn for both ports, with bounds it lacks: a time limit for a request's headers, a number of connections for each client, and a way
to drop a connection whose client does not read (closing politely would wait for it). And with a short way for answers that are known
at once, as a probe's: no task, no parsing of bytes that came a thousand times before."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

# Where the application finds the function that drops its connection.
ABORT_KEY: Final = "pratique_abort"
BACKLOG: Final = 2048
HEADER_BYTES_MAX: Final = 64 * 1024
# What is remembered of requests that were understood: as many as there are kinds of prober, and no long ones.
REMEMBERED_MAX: Final = 64
REMEMBERED_BYTES_MAX: Final = 1024

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Response:
    """A whole one; its headers have lower-case names and say its body's length."""

    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True)
class BareRequest:
    """One whole request without a body. ``keeps_alive``: the client has not asked for the connection's end."""

    method: str
    path: str
    keeps_alive: bool


# The answer to a method and a path, when it is known at once; None sends the request through the application.
AtOnce = Callable[[str, str], Response | None]


@lru_cache(maxsize=REMEMBERED_MAX)
def understand(data: bytes) -> BareRequest | None:
    """The one request that ``data`` is, as h11 reads it; None for anything less, more or else. A prober sends the same bytes each time,
    so h11 reads them once."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        request, end = connection.next_event(), connection.next_event()
    except h11.RemoteProtocolError:
        return None
    if not (isinstance(request, h11.Request) and isinstance(end, h11.EndOfMessage)):
        return None
    # In these states bytes behind the request are another one's, or wait for a switch to another protocol.
    if connection.trailing_data[0] or connection.their_state not in (h11.DONE, h11.MUST_CLOSE):
        return None
    if request.http_version != b"1.1" or any(name == b"upgrade" for name, _ in request.headers):
        return None
    return BareRequest(request.method.decode(), request.target.decode(), connection.their_state is h11.DONE)


def make_protocol(
    *, header_seconds_max: float, per_client_max: int | None = None, at_once: AtOnce | None = None
) -> type[H11Protocol]:
    """A protocol class with the limits bound in, as uvicorn wants a class. ``per_client_max`` holds for each address but this machine's
    own. Without ``at_once`` there is no short way, and nothing is remembered of what clients send."""
    connected: Counter[str] = Counter()

    class BoundedProtocol(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.app = _WithAbort(self.app, self)
            self._header_timer: asyncio.TimerHandle | None = None
            self._address = ""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._address = _address_of(transport)
            connected[self._address] += 1
            if per_client_max is not None and self._address and connected[self._address] > per_client_max:
                transport.abort()  # before it counts among the connections that probes share
                return
            self._watch_headers()

        def data_received(self, data: bytes) -> None:
            if not self._answered_at_once(data):
                super().data_received(data)
                self._watch_headers()

        def _answered_at_once(self, data: bytes) -> bool:
            """Whether the bytes were one whole request whose answer is known, and were answered."""
            if at_once is None or len(data) > REMEMBERED_BYTES_MAX or not self._is_between_requests():
                return False
            request = understand(data)
            response = at_once(request.method, request.path) if request is not None else None
            if request is None or response is None:
                return False
            headers = [*self.server_state.default_headers, *response.headers]
            if not request.keeps_alive:
                headers.append((b"Connection", b"close"))  # as h11 writes it
            phrase = HTTPStatus(response.status).phrase
            head = b"".join(b"%s: %s\r\n" % header for header in headers)
            self.transport.write(
                b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (response.status, phrase.encode(), head, response.body)
            )
            self._unset_keepalive_if_required()
            if request.keeps_alive:
                self.on_response_complete()
            else:
                self._stop_timer()
                self.transport.close()
            return True

        def _is_between_requests(self) -> bool:
            """Nothing of a request has come, nothing of an answer waits to be sent."""
            return (
                self.conn.their_state is h11.IDLE
                and self.conn.our_state is h11.IDLE
                and not self.conn.trailing_data[0]
                and not self.transport.is_closing()
                and not self.transport.get_write_buffer_size()
            )

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            connected[self._address] -= 1
            if not connected[self._address]:
                del connected[self._address]
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


def _address_of(transport: asyncio.Transport) -> str:
    """The client's address; nothing for this machine's own."""
    peer = transport.get_extra_info("peername")
    address = str(peer[0]) if peer else ""
    return "" if not address or ip_address(address.partition("%")[0]).is_loopback else address


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
        self,
        app: ASGIApp,
        *,
        header_seconds_max: float,
        keep_alive_seconds: float,
        connections_max: int | None = None,
        per_client_max: int | None = None,
        at_once: AtOnce | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=make_protocol(
                    header_seconds_max=header_seconds_max, per_client_max=per_client_max, at_once=at_once
                ),
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
