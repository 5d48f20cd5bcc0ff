"""The API process's live requests: one bounded buffer of events for each, and how each ends.

A stream ends in exactly one way: a finishing event, an error from the engine, or closure from this side. After it
ended nothing more is delivered. A reader slower than the engine never holds the engine up: beyond ``EVENTS_MAX``
waiting events the newest two are merged into one, so a buffer is bounded by the request's own ``max_new_tokens``.
"""

import asyncio
from collections import deque
from typing import Final

from pratique_server.engine.protocol import (
    DuplicateRequestError,
    EngineError,
    EngineOverloadedError,
    RequestAbortedError,
    StepEvent,
    TokenLogprobs,
)

EVENTS_MAX: Final = 16


class EventStream:
    """Events of one request, pushed by the engine's side and pulled by one reader in the same event loop."""

    def __init__(self, request_id: str, version: int) -> None:
        self.request_id = request_id
        self.version = version
        self._events: deque[StepEvent] = deque()
        self._error: EngineError | None = None
        self._ended = False
        self._wake = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self._ended

    def push(self, event: StepEvent) -> None:
        if self._ended:
            return
        self._ended = event.finish is not None
        if len(self._events) >= EVENTS_MAX:
            event = merge_events(self._events.pop(), event)
        self._events.append(event)
        self._wake.set()

    def fail(self, error: EngineError) -> None:
        """End with an error once the events already here are read."""
        if not self._ended:
            self._ended, self._error = True, error
            self._wake.set()

    def abort(self, message: str) -> None:
        """End now: events not read yet are dropped, so that nothing follows a cancellation."""
        self._events.clear()
        self._ended, self._error = True, RequestAbortedError(message)
        self._wake.set()

    async def next(self, *, wait_seconds: float | None) -> StepEvent | None:
        """Next event, or None after the finishing one. Raises the stream's error, or ``TimeoutError`` after
        ``wait_seconds``."""
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            self._wake.clear()
            async with asyncio.timeout(wait_seconds):
                await self._wake.wait()
        return self._events.popleft()


class LiveStreams:
    """All live streams by request id. ``limit`` bounds them; ``version`` tells a reused id from its predecessor."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._by_id: dict[str, EventStream] = {}
        self._versions = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, request_id: str, *, reserved: bool) -> EventStream:
        if request_id in self._by_id:
            raise DuplicateRequestError(f"A request with the id {request_id} is live.")
        if len(self._by_id) >= self._limit and not reserved:
            raise EngineOverloadedError(f"The queue is full: {len(self._by_id)} requests are live.")
        self._versions += 1
        stream = EventStream(request_id, self._versions)
        self._by_id[request_id] = stream
        self._idle.clear()
        return stream

    def get(self, request_id: str, version: int | None = None) -> EventStream | None:
        stream = self._by_id.get(request_id)
        return stream if stream is not None and version in (None, stream.version) else None

    def close(self, stream: EventStream) -> None:
        if self._by_id.get(stream.request_id) is stream:
            del self._by_id[stream.request_id]
        if not self._by_id:
            self._idle.set()

    def fail_all(self, error: EngineError) -> None:
        for stream in list(self._by_id.values()):
            stream.fail(error)

    async def wait_idle(self, *, wait_seconds: float) -> bool:
        """Whether no stream was left within that time."""
        try:
            async with asyncio.timeout(max(0.0, wait_seconds)):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


def merge_events(first: StepEvent, second: StepEvent) -> StepEvent:
    """One event that carries the tokens of both, in order, and the end of the second."""
    logprobs: list[TokenLogprobs] | None = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = [*(first.logprobs or []), *(second.logprobs or [])]
    return StepEvent(
        request_id=first.request_id,
        token_ids=[*first.token_ids, *second.token_ids],
        logprobs=logprobs,
        finish=second.finish,
        cached_tokens=first.cached_tokens or second.cached_tokens,
        enqueued_at=first.enqueued_at,
        first_scheduled_at=first.first_scheduled_at,
        emitted_at=second.emitted_at,
        preemptions=second.preemptions,
    )
