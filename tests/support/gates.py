"""A gate with everything around it scripted: a server of exact bytes on a real socket, an engine that only counts."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from pratique_contract.constants import FINGERPRINT_HEADER
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ModelSource, ReleaseSpec, ServingSpec
from pratique_server.engine.protocol import EngineStats
from pratique_server.gate.gate import Gate, MakeRecord
from pratique_server.gate.record_file import FoundRecord
from tests.support.releases import make_record

Chunk = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

# The scripted model of ``make_record``: prompt "Ahoy" is (5, 6); the answer "ab" is (10, 11) and the stop token 2.
TOKENS = {5: "Ah", 6: "oy", 10: "a", 11: "b", 12: "c"}


class ScriptedTokenizer:
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(TOKENS.get(token, "" if skip_special_tokens else "<end>") for token in ids)


@dataclass
class Rendered:
    text: str
    ids: list[int]


class ScriptedRenderer:
    """Joins contents; a word is tokenized by its letters' halves."""

    tokenizer = ScriptedTokenizer()
    template_text = None

    def __init__(self, *, text: str | None = None, ids: list[int] | None = None) -> None:
        self._text, self._ids = text, ids

    def render(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> Rendered:
        text = self._text or "".join(message["content"] for message in messages)
        return Rendered(text=text, ids=self._ids or [5, 6])


@dataclass
class CountingEngine:
    """Only ``stats``: what the gate asks an engine for."""

    used_after: int = 0
    total_after: int = 8
    error: Exception | None = None
    looks: int = 0

    async def stats(self) -> EngineStats:
        if self.error is not None:
            raise self.error
        self.looks += 1
        first = self.looks == 1
        used = 0 if first else self.used_after
        return EngineStats(
            epoch=1,
            running=0,
            waiting=0,
            waiting_tokens=0,
            blocks_total=8 if first else self.total_after,
            blocks_free=8 - used,
            blocks_cached=0,
            blocks_used=used,
            preemptions=0,
            steps=0 if first else 5,
        )


@dataclass
class ScriptedServer:
    """Answers every chat request with the given bytes. ``delay`` before each piece; ``cut`` ends without the final chunk."""

    pieces: Sequence[bytes]
    fingerprint: str
    status: int = 200
    content_type: str = "text/event-stream"
    encoding: str | None = None
    hang_seconds: float = 0.0
    cut: bool = False
    refusals: list[tuple[int, str]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.requests.append(json.loads((await receive())["body"]))
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        if self.refusals:
            status, code = self.refusals.pop(0)
            await self._start(send, status, "application/json")
            body = json.dumps({"error": {"code": code, "message": "not now"}}).encode()
            await send({"type": "http.response.body", "body": body})
            return
        await self._start(send, self.status, self.content_type)
        for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(self.hang_seconds)
        if self.cut:
            raise ConnectionAbortedError("cut on purpose")
        await send({"type": "http.response.body", "body": b""})

    async def _start(self, send: Any, status: int, content_type: str) -> None:
        headers = [(b"content-type", content_type.encode()), (FINGERPRINT_HEADER.encode(), self.fingerprint.encode())]
        if self.encoding is not None:
            headers.append((b"content-encoding", self.encoding.encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})


@dataclass
class ServedPort:
    """A listening port and the application that answers on it now."""

    url: str
    app: App | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)


@contextmanager
def serving(app: App | None = None) -> Iterator[ServedPort]:
    """Serve on a real socket of 127.0.0.1, in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    served = ServedPort(url=f"http://127.0.0.1:{listener.getsockname()[1]}", app=app)
    config = uvicorn.Config(served, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.should_exit = True
        thread.join(5)
        listener.close()


def sse(*chunks: Chunk | str) -> list[bytes]:
    return [
        f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk, ensure_ascii=False)}\n\n".encode()
        for chunk in chunks
    ]


def make_chunk(fingerprint: str, **fields: Any) -> Chunk:
    base = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "system_fingerprint": fingerprint,
    }
    return {**base, **fields}


@dataclass(frozen=True)
class Script:
    """Builders of the events of one answer, each right by itself."""

    fingerprint: str

    def role(self) -> Chunk:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return make_chunk(self.fingerprint, choices=[choice], prompt_token_ids=[5, 6])

    def content(self, text: str, *tokens: tuple[int, float]) -> Chunk:
        return make_chunk(self.fingerprint, choices=[self._choice({"content": text}, None, tokens)])

    def finish(self, reason: str = "stop", *tokens: tuple[int, float], delta: Chunk | None = None) -> Chunk:
        return make_chunk(self.fingerprint, choices=[self._choice(delta or {}, reason, tokens)])

    def usage(self, prompt: int = 2, completion: int = 3) -> Chunk:
        counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return make_chunk(self.fingerprint, choices=[], usage=counts)

    def good(self) -> list[Any]:
        return [
            self.role(),
            self.content("a", (10, -0.1)),
            self.content("b", (11, -0.2)),
            self.finish("stop", (2, -0.3)),
            self.usage(),
            "[DONE]",
        ]

    def _choice(self, delta: Chunk, reason: str | None, tokens: tuple[tuple[int, float], ...]) -> Chunk:
        return {
            "index": 0,
            "delta": delta,
            "finish_reason": reason,
            "token_ids": [token for token, _ in tokens],
            "logprobs": {"content": [{"token": "", "logprob": value} for _, value in tokens]},
        }


def make_spec(**fields: Any) -> ServingSpec:
    defaults: dict[str, Any] = {
        "served_model_name": "tiny",
        "model": ModelSource(path="unused", uri="file://unused"),
        "probe_timeout_seconds": 5.0,
    }
    return ServingSpec(**{**defaults, **fields})


def make_gate(
    base_url: str,
    *,
    record: ReleaseRecord | None = None,
    manifest: ReleaseManifest | None = None,
    engine: CountingEngine | None = None,
    renderer: ScriptedRenderer | None = None,
    release: ReleaseSpec | None = None,
    problem: str | None = None,
    approved: bool = True,
    own_record: MakeRecord | None = None,
    timeout_seconds: float = 5.0,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Gate:
    engine_double: Any = engine or CountingEngine()
    return Gate(
        make_spec(release=release or ReleaseSpec(), probe_timeout_seconds=timeout_seconds),
        FoundRecord(record=record, problem=problem, approved=approved),
        manifest=manifest or make_record().manifest,
        engine=engine_double,
        renderer=renderer or ScriptedRenderer(),
        probe_token="probe-token",
        make_record=own_record,
        base_url=base_url,
        sleep=sleep,
    )


async def no_sleep(seconds: float) -> None:
    """Gives way without waiting."""
    await asyncio.sleep(0)
