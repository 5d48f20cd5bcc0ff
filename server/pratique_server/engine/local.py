"""The same engines inside this process, without sockets: for unit tests and ``pratique release record``.

Steps run in a worker thread, one at a time; requests and cancellations wait for the step that is running.
"""

import asyncio
import time
from collections.abc import AsyncIterator

import torch

from pratique_contract import ServingSpec
from pratique_server.engine.build import build_engine
from pratique_server.engine.protocol import (
    DeadlineExceededError,
    EngineDeadError,
    EngineIdentity,
    EngineOverloadedError,
    EngineStats,
    ExecutionRequest,
    StepEvent,
)
from pratique_server.engine.step_engine import ForcedSequence, StepEngine
from pratique_server.engine.streams import EventStream, LiveStreams


class LocalEngine:
    """See ``Engine``."""

    def __init__(self, engine: StepEngine, *, live_max: int) -> None:
        self._engine = engine
        self._streams = LiveStreams(limit=live_max)
        self._step_lock = asyncio.Lock()
        self._work = asyncio.Event()
        self._dead = False
        self._draining = False
        self._loop_task = asyncio.create_task(self._run())

    async def identity(self) -> EngineIdentity:
        return self._engine.identity()

    async def start(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
        """See ``Engine.start``."""
        if self._dead:
            raise EngineDeadError("The engine is not running.")
        if self._draining:
            raise EngineOverloadedError("The engine is draining and takes no new requests.")
        stream = self._streams.open(request.request_id, reserved=request.reserved)
        try:
            async with self._step_lock:
                self._engine.add_request(request)
            self._work.set()
            while (event := await self._next(stream, request.deadline)) is not None:
                yield event
        finally:
            await self._release(stream)

    async def _next(self, stream: EventStream, deadline: float | None) -> StepEvent | None:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return await stream.next(wait_seconds=timeout)
        except TimeoutError as error:
            raise DeadlineExceededError("The request's deadline passed before it finished.") from error

    async def _release(self, stream: EventStream) -> None:
        stream.abort("The request was closed.")
        async with self._step_lock:
            self._engine.cancel(stream.request_id)
        self._streams.close(stream)

    async def cancel(self, request_id: str) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.abort("The request was cancelled.")
            async with self._step_lock:
                self._engine.cancel(request_id)

    async def stats(self) -> EngineStats:
        return self._engine.stats().report(epoch=1)

    async def score(self, sequences: list[ForcedSequence]) -> list[torch.Tensor]:
        """See ``StepEngine.score``. Raises ``EngineOverloadedError`` while a request is live."""
        async with self._step_lock:
            if self._engine.has_work():
                raise EngineOverloadedError("The engine is busy; scoring needs it alone.")
            return await asyncio.to_thread(self._engine.score, sequences)

    async def drain(self, deadline: float) -> None:
        self._draining = True
        await self._streams.wait_idle(wait_seconds=deadline - time.monotonic())

    async def close(self) -> None:
        self._dead = True
        self._loop_task.cancel()
        await asyncio.gather(self._loop_task, return_exceptions=True)
        self._streams.fail_all(EngineDeadError("The engine was closed."))

    async def _run(self) -> None:
        try:
            while True:
                await self._work.wait()
                async with self._step_lock:
                    if not self._engine.has_work():
                        self._work.clear()
                        continue
                    output = await asyncio.to_thread(self._engine.step)
                for event in output.events:
                    if stream := self._streams.get(event.request_id):
                        stream.push(event)
                for failure in output.failures:
                    if stream := self._streams.get(failure.request_id):
                        stream.fail(failure.error)
        except Exception as error:
            self._dead = True
            self._streams.fail_all(EngineDeadError(f"The engine failed: {type(error).__name__}: {error}"))
            raise


async def start_local_engine(spec: ServingSpec) -> LocalEngine:
    """Load the engine in a thread of this process; raises ``EngineError`` with a sentence when it cannot."""
    engine = await asyncio.to_thread(build_engine, spec)
    return LocalEngine(engine, live_max=spec.limits.max_queued + spec.engine.max_num_seqs)
