"""A scripted engine and an API around it, for tests of everything above the engine seam. It is a double for speed: that the
real engine behaves so is shown in ``tests/integration/server``.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import httpx
from fastapi import FastAPI
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from pratique_contract import Reason, ServingSpec, Verdict, VerdictResult
from pratique_server.api.app import make_app
from pratique_server.api.auth import ApiKeys
from pratique_server.api.state import ApiState, EngineSlot, Release
from pratique_server.config import ApiLimits
from pratique_server.engine.protocol import (
    EngineIdentity,
    EngineStats,
    ExecutionRequest,
    FinishReason,
    StepEvent,
    TokenLogprobs,
)
from pratique_server.management.status import EngineReport, PodStatus
from pratique_server.metrics import Metrics
from pratique_server.text import ChatTemplate, Renderer, Tokenizer
from tests.support.models import CHATML

MODEL = "harbour"
FINGERPRINT = "sha256:" + "ab" * 32
PROBE_TOKEN = "probe-token-of-this-process"
EOS = 256
SPECIALS = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}


@lru_cache
def byte_tokenizer() -> Tokenizer:
    """Every byte is a token, so that every character beyond ASCII is split over tokens. Id 256 ends an answer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_end|>", "<|im_start|>"])
    return Tokenizer(backend, SPECIALS)


@lru_cache
def compiled_template(text: str) -> ChatTemplate:
    return ChatTemplate(text)


def events_of(text: str, *, finish: FinishReason = FinishReason.STOP, per_event: int = 1) -> list[StepEvent]:
    """Engine events that say ``text``, ``per_event`` tokens at a time, with the stop token at the end."""
    ids = byte_tokenizer().encode(text) + ([EOS] if finish is FinishReason.STOP else [])
    groups = [ids[start : start + per_event] for start in range(0, len(ids), per_event)]
    return [
        StepEvent(request_id="", token_ids=group, finish=finish if index == len(groups) - 1 else None)
        for index, group in enumerate(groups)
    ]


Step = StepEvent | Exception | float | asyncio.Event


@dataclass
class ScriptedEngine:
    """Plays ``script`` for each request: an event is yielded, an exception raised, a number slept, an ``asyncio.Event`` awaited.
    Keeps to the protocol: one finish, log-probabilities when asked for, cancellation when the iterator is closed."""

    script: Sequence[Step] = field(default_factory=lambda: events_of("Hello, harbour."))
    requests: list[ExecutionRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    yielded: int = 0

    def start(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
        return self._play(request)

    async def _play(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
        self.requests.append(request)
        self.live.add(request.request_id)
        try:
            for step in self.script:
                if isinstance(step, StepEvent):
                    if request.request_id not in self.live:
                        return
                    self.yielded += 1
                    yield self._as_asked(step, request)
                elif isinstance(step, Exception):
                    raise step
                elif isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    await asyncio.sleep(step)
        finally:
            self.live.discard(request.request_id)

    def _as_asked(self, event: StepEvent, request: ExecutionRequest) -> StepEvent:
        logprobs = None
        if request.sampling.logprobs is not None:
            top = [(token, -1.5) for token in range(request.sampling.logprobs)]
            logprobs = [TokenLogprobs(chosen=-0.25, top=top) for _ in event.token_ids]
        return StepEvent(
            request_id=request.request_id,
            token_ids=event.token_ids,
            logprobs=logprobs,
            finish=event.finish,
            cached_tokens=event.cached_tokens,
        )

    async def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.live.discard(request_id)

    async def stats(self) -> EngineStats:
        return idle_stats(running=len(self.live))

    async def identity(self) -> EngineIdentity:
        raise NotImplementedError

    async def drain(self, deadline: float) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        self.live.clear()


def idle_stats(**changes: Any) -> EngineStats:
    values: dict[str, Any] = {
        "epoch": 1,
        "running": 0,
        "waiting": 0,
        "waiting_tokens": 0,
        "blocks_total": 10,
        "blocks_free": 10,
        "blocks_cached": 0,
        "blocks_used": 0,
        "preemptions": 0,
        "steps": 0,
    }
    return EngineStats(**{**values, **changes})


@dataclass
class FixedVerdict:
    """A verdict that tests replace."""

    verdict: Verdict = field(
        default_factory=lambda: Verdict(
            result=VerdictResult.PASS, reason=Reason.VERIFIED, message="proved", fingerprint=FINGERPRINT
        )
    )

    def current(self) -> Verdict:
        return self.verdict


@dataclass
class Api:
    """An API over a scripted engine, with a client that talks ASGI to it."""

    engine: ScriptedEngine
    state: ApiState
    verdicts: FixedVerdict
    app: FastAPI

    def client(self, **headers: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app),
            base_url="http://api",
            headers=headers,
            timeout=20,
            trust_env=False,
        )

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        async with self.client(**headers) as client:
            return await client.post(path, json=body)

    async def chat(self, body: Mapping[str, Any] | None = None, /, **headers: str) -> httpx.Response:
        """A plain request with the given changes; a value of ``...`` removes the field."""
        return await self.post("/v1/chat/completions", chat_body(**(body or {})), **headers)


def chat_body(**changes: Any) -> dict[str, Any]:
    plain = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    return {name: value for name, value in {**plain, **changes}.items() if value is not ...}


def make_spec(**changes: Any) -> ServingSpec:
    values = {"served_model_name": MODEL, "model": {"path": "/models/harbour", "uri": "file:///models/harbour"}}
    return ServingSpec.model_validate({**values, **changes})


def make_api(
    script: Sequence[Step] | None = None,
    *,
    template: str = CHATML,
    limits: ApiLimits | None = None,
    defaults: dict[str, Any] | None = None,
    keys: ApiKeys | None = None,
    context_limit: int = 512,
    clock: Callable[[], float] | None = None,
    spec_limits: dict[str, Any] | None = None,
) -> Api:
    engine = ScriptedEngine() if script is None else ScriptedEngine(script)
    tokenizer = byte_tokenizer()
    verdicts = FixedVerdict()
    status = PodStatus(verdicts, heartbeat_seconds_max=60)
    status.engine_up = True
    status.report = EngineReport(stats=idle_stats(), read_at=asyncio.get_running_loop().time())
    release = Release(
        fingerprint=FINGERPRINT,
        model_revision="model-revision",
        tokenizer_revision="tokenizer-revision",
        stop_ids=(EOS,),
        defaults=defaults or {},
        context_limit=context_limit,
        vocab_size=tokenizer.vocab_size,
    )
    state = ApiState(
        spec=make_spec(limits=spec_limits or {}),
        release=release,
        renderer=Renderer(compiled_template(template), tokenizer),
        engine=EngineSlot(engine),
        status=status,
        metrics=Metrics(),
        probe_token=PROBE_TOKEN,
        keys=keys,
        limits=limits or ApiLimits(),
        clock=clock or time.monotonic,
    )
    return Api(engine=engine, state=state, verdicts=verdicts, app=make_app(state))


class RawExchange:
    """One request driven message by message, for what an HTTP client library hides: disconnects and slow reading."""

    def __init__(self, api: Api, body: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        self._api = api
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.sent: list[dict[str, Any]] = []
        self.sent_something = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.aborted = False
        given = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "server": ("api", 80),
            "client": ("client", 1),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "pratique_abort": self._abort,
        }

    def _abort(self) -> None:
        self.aborted = True

    def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def run(self) -> None:
        await self._api.app(self._scope, self._incoming.get, self._send)

    async def _send(self, message: Any) -> None:
        await self.writable.wait()
        self.sent.append(dict(message))
        self.sent_something.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def eventually(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """Wait for a condition; a test that waits for ever says nothing."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)
