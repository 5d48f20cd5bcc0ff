"""The management port's answers: a plain ASGI application, one small function per path, nothing that waits but for a body, and for
that one at a time and not for long. Anyone in the cluster may reach it.

``/livez`` never depends on the verdict (a restart does not cure a wrong artefact). ``/startupz`` answers 503 with
``Reason: message`` as its first line until the verdict passes.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

from pratique_contract import constants
from pratique_contract.record import RECORD_BYTES_MAX
from pratique_server.http_server import Headers, Response
from pratique_server.management.status import PodStatus, Readiness
from pratique_server.metrics import Metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
BODY_SECONDS_MAX: Final = 10.0
PROBE_PATHS: Final = frozenset({constants.LIVEZ_PATH, constants.READYZ_PATH, constants.STARTUPZ_PATH})
_log = logging.getLogger(__name__)


class RecordSaid(Protocol):
    """A status and a JSON body."""

    @property
    def status(self) -> int: ...
    @property
    def body(self) -> bytes: ...


class RecordSource(Protocol):
    """Who keeps this pod's release record; called from the management thread."""

    def answer(self, of: str | None = None) -> RecordSaid: ...
    def ask(self, body: bytes) -> RecordSaid: ...


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    media_type: str = TEXT


class ManagementApp:
    """``drain`` is called in this thread and must hand over to whoever owns the life cycle."""

    def __init__(
        self,
        status: PodStatus,
        metrics: Metrics,
        *,
        drain: Callable[[], None],
        desk: Callable[[], RecordSource | None] = lambda: None,
    ) -> None:
        self._status = status
        self._metrics = metrics
        self._drain = drain
        self._desk = desk
        self._routes: dict[tuple[str, str], Callable[[], Answer]] = {
            ("GET", constants.LIVEZ_PATH): self._livez,
            ("GET", constants.READYZ_PATH): self._readyz,
            ("GET", constants.STARTUPZ_PATH): self._startupz,
            ("GET", constants.VERDICT_PATH): self._verdict,
            ("GET", constants.MANIFEST_PATH): self._manifest,
            ("GET", constants.METRICS_PATH): self._metrics_text,
            ("GET", constants.STATS_PATH): self._stats,
            ("POST", constants.DRAIN_PATH): self._begin_drain,
            ("GET", constants.RECORD_API_PATH): self._record,
            ("POST", constants.RECORD_API_PATH): lambda: self._ask_record(b""),
        }
        self._receiving = False
        self._paths = {path for _, path in self._routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            answer = await self._answer_request(scope, receive)
        except Exception:  # noqa: BLE001 - uvicorn would answer as much, but its log is not kept (configure_logs)
            _log.exception("Could not answer", extra={"fields": {"method": scope["method"], "path": scope["path"]}})
            answer = Answer(500, b"500: a fault of this server, told in its log\n")
        await send({"type": "http.response.start", "status": answer.status, "headers": self._headers(answer)})
        await send({"type": "http.response.body", "body": answer.body})

    def at_once(self, method: str, path: str) -> Response | None:
        """A probe's answer, for the server's short way."""
        if method != "GET" or path not in PROBE_PATHS:
            return None
        answer = self.answer(method, path)
        return Response(answer.status, self._headers(answer), answer.body)

    def _headers(self, answer: Answer) -> Headers:
        headers = [
            (b"content-type", answer.media_type.encode()),
            (b"content-length", str(len(answer.body)).encode()),
            (constants.CONTRACT_HEADER.encode(), constants.CONTRACT_VERSION.encode()),
        ]
        fingerprint = self._status.fingerprint
        if fingerprint is not None:
            headers.append((constants.FINGERPRINT_HEADER.encode(), fingerprint.encode()))
        return headers

    async def _answer_request(self, scope: Scope, receive: Receive) -> Answer:
        match scope["method"], scope["path"]:
            case "POST", constants.RECORD_API_PATH:
                return await self._receive_record(receive)
            case "GET", constants.RECORD_API_PATH:
                return self._record(_query(scope, constants.RECORD_OF_PARAMETER))
            case "POST", constants.DRAIN_PATH if not _is_local(scope):
                # It cannot be taken back, and whoever reaches the port would take this pod out with it.
                return Answer(403, b"403: only from inside the pod\n")
        return self.answer(scope["method"], scope["path"])

    async def _receive_record(self, receive: Receive) -> Answer:
        """Read a body of up to a megabyte, one at a time and not for long: probes share this port's connections."""
        if self._receiving:
            return _message(503, "Another record is being received: ask again")
        self._receiving = True
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                body = await _read_body(receive)
        except TimeoutError:
            return _message(408, f"The record had not arrived after {BODY_SECONDS_MAX:g} s")
        finally:
            self._receiving = False
        return _message(413, "No record is that large") if body is None else self._ask_record(body)

    def answer(self, method: str, path: str) -> Answer:
        """Pure dispatch, usable without a server."""
        handler = self._routes.get((("GET" if method == "HEAD" else method), path))
        if handler is not None:
            return handler()
        status = 405 if path in self._paths else 404
        return Answer(status, f"{status}: no such path or method\n".encode())

    def _livez(self) -> Answer:
        return _probe(self._status.liveness())

    def _readyz(self) -> Answer:
        return _probe(self._status.readiness())

    def _startupz(self) -> Answer:
        return _probe(self._status.verified())

    def _verdict(self) -> Answer:
        return _json(self._status.verdict.to_json_value())

    def _manifest(self) -> Answer:
        manifest = self._status.manifest
        if manifest is None:
            return Answer(503, b"Loading: nothing is loaded yet\n")
        return _json(manifest.describe())

    def _metrics_text(self) -> Answer:
        return Answer(200, self._metrics.exposition(), PROMETHEUS)

    def _stats(self) -> Answer:
        return _json(self._status.to_json_value())

    def _begin_drain(self) -> Answer:
        self._drain()
        return _json({"draining": True})

    def _record(self, of: str | None = None) -> Answer:
        desk = self._desk()
        return _recorded(desk.answer(of)) if desk is not None else _message(503, "This pod is starting")

    def _ask_record(self, body: bytes) -> Answer:
        desk = self._desk()
        if desk is None or self._status.draining:
            return _message(503, "This pod is starting or ending")
        return _recorded(desk.ask(body))


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body, or None when it is larger than any record."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > RECORD_BYTES_MAX:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return bytes(body)


def _query(scope: Scope, name: str) -> str | None:
    values = parse_qs(scope.get("query_string", b"").decode("latin-1")).get(name)
    return None if values is None else values[0]


def _is_local(scope: Scope) -> bool:
    """Whether the client is in this pod (or on this machine): port forwarding and commands in the container are."""
    client = scope.get("client")
    try:
        return client is not None and ip_address(client[0]).is_loopback
    except ValueError:
        return False


def _message(status: int, sentence: str) -> Answer:
    return Answer(status, json.dumps({"message": sentence}).encode(), JSON)


def _recorded(answer: RecordSaid) -> Answer:
    return Answer(answer.status, answer.body, JSON)


def _probe(readiness: Readiness) -> Answer:
    return Answer(200 if readiness.ready else 503, f"{readiness.line()}\n".encode())


def _json(value: Any) -> Answer:
    return Answer(200, json.dumps(value, ensure_ascii=False).encode() + b"\n", JSON)
