"""The outermost layer, pure ASGI (a wrapping middleware that buffers would break streams and hide disconnects): request id,
headers on every answer, authentication and readiness before anything is read, errors to answers, one trace per request.
"""

import asyncio
import logging
import secrets
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pratique_contract import constants
from pratique_server.api.admission import admit, require_still_admitted
from pratique_server.api.errors import error_body, error_headers, rule_of
from pratique_server.api.state import ApiState
from pratique_server.api.trace import RequestTrace, finish_trace
from pratique_server.errors import (
    CancelledByClientError,
    InternalError,
    InvalidRequestError,
    PratiqueError,
    SaturatedError,
)
from pratique_server.http_server import ABORT_KEY

TRACE_KEY: Final = "pratique_trace"
DISCARD_SECONDS_MAX: Final = 2.0
HTTP_ERRORS_FROM: Final = 400
GENERATING_PATHS: Final = frozenset({constants.CHAT_COMPLETIONS_PATH})
_CLOSE: Final = (b"connection", b"close")
_log = logging.getLogger(__name__)


class Edge:
    """Wraps the routes. Lives inside the framework's own error layer, so that no error page but ours is ever sent."""

    def __init__(self, app: ASGIApp, state: ApiState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._state)
        try:
            with self._state.live.track():
                await self._answer(exchange, scope)
        finally:
            exchange.finish()

    async def _answer(self, exchange: "_Exchange", scope: Scope) -> None:
        try:
            exchange.check_request_id()
            if len(self._state.live) > self._state.limits.in_flight_max:
                raise SaturatedError("Too many requests are open; try again later")
            admit(exchange.trace, exchange.headers, self._state)
            exchange.trace.admitted_at = self._state.clock()
            with self._serve_user(exchange.trace):
                await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            exchange.trace.error = exchange.trace.error or InternalError("The server stopped")
            raise
        except PratiqueError as error:
            await exchange.answer_error(error)
        except Exception:  # noqa: BLE001 - one request's fault is answered, logged, and stays that request's
            _log.exception("Request %s failed", exchange.trace.request_id)
            await exchange.answer_error(InternalError("The server failed on this request"))

    def _serve_user(self, trace: RequestTrace) -> AbstractContextManager[None]:
        """What the server does for itself stops here, before the body is read: the engine is free when this request gets there."""
        counts = trace.generates and not trace.reserved
        return self._state.live.serve_user() if counts else nullcontext()


class _Exchange:
    """One request and its answer: wraps ``receive`` and ``send`` to know what was read and sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, state: ApiState) -> None:
        self._receive = receive
        self._send = send
        self._state = state
        self._abort = scope.get(ABORT_KEY)
        self.headers = Headers(scope=scope)
        self._started = False
        self._body_read = False
        self._asked_for_body = False
        self.trace = RequestTrace(
            request_id=f"req-{secrets.token_hex(12)}",
            method=scope["method"],
            path=scope["path"][:128],
            arrived_at=state.clock(),
            generates=scope["path"] in GENERATING_PATHS,
        )
        scope[TRACE_KEY] = self.trace

    def check_request_id(self) -> None:
        """Take the client's id if it is one: printable ASCII of bounded length, since it is echoed and logged."""
        given = self.headers.get(constants.REQUEST_ID_HEADER)
        if given is None:
            return
        if not 0 < len(given) <= self._state.limits.request_id_length_max or not (
            given.isascii() and given.isprintable()
        ):
            raise InvalidRequestError(
                f"{constants.REQUEST_ID_HEADER} must have 1 to {self._state.limits.request_id_length_max} "
                "printable ASCII characters",
                param=constants.REQUEST_ID_HEADER,
            )
        self.trace.request_id = given

    async def receive(self) -> Message:
        self._asked_for_body = True
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._body_read = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if message["status"] < HTTP_ERRORS_FROM:
                require_still_admitted(self.trace, self._state)
            self._started = True
            self.trace.status = message["status"]
            headers = [*message.get("headers", []), *self._own_headers()]
            # Draining: the client's next request must find another pod. Two lengths: a proxy that believed the other one would
            # take the rest of the body for a second request (RFC 9112, 6.1).
            if (self._state.status.draining or self._has_two_lengths) and _CLOSE not in headers:
                headers.append(_CLOSE)
            message = {**message, "headers": headers}
        await self._send(message)

    @property
    def _has_two_lengths(self) -> bool:
        return "content-length" in self.headers and "transfer-encoding" in self.headers

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (constants.REQUEST_ID_HEADER.encode(), self.trace.request_id.encode()),
            (constants.CONTRACT_HEADER.encode(), constants.CONTRACT_VERSION.encode()),
            (constants.FINGERPRINT_HEADER.encode(), self._state.release.fingerprint.encode()),
        ]

    async def answer_error(self, error: PratiqueError) -> None:
        """As a status when nothing was sent yet. A started answer can only be cut, visibly: the connection is dropped."""
        self.trace.error = self.trace.error or error
        if self._started or isinstance(error, CancelledByClientError):
            if self._abort is not None:
                self._abort()
            return
        body, headers = error_body(error), error_headers(error)
        if not await self._discard_body():
            headers.append(_CLOSE)
        headers.append((b"content-length", str(len(body)).encode()))
        await self.send({"type": "http.response.start", "status": rule_of(error).status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _discard_body(self) -> bool:
        """Read what the client is still sending, so that it reads our answer instead of a reset; False when there is more."""
        if self._body_read or (
            self.headers.get("content-length", "0") == "0" and "transfer-encoding" not in self.headers
        ):
            return True
        if not self._asked_for_body and "expect" in self.headers:
            return False
        try:
            async with asyncio.timeout(DISCARD_SECONDS_MAX):
                while True:
                    message = await self.receive()
                    if not message.get("more_body", False):
                        return True
        except TimeoutError:
            return False

    def finish(self) -> None:
        release = self._state.release
        facts: dict[str, Any] = {
            "fingerprint": release.fingerprint,
            "model_revision": release.model_revision,
            "tokenizer_revision": release.tokenizer_revision,
        }
        finish_trace(self.trace, self._state.metrics, now=self._state.clock(), facts=facts)
