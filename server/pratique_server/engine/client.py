"""The API process's side of the engine core: ``Engine`` over sockets, one epoch of the process at a time.

Streams belong to this object; what runs belongs to the core. When the core dies or falls silent every live stream
ends with ``EngineDeadError`` and stays ended: ``restart`` begins a new epoch with new sockets, and nothing of the
old one can arrive there. A request is never run twice.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator
from typing import Final

from pratique_contract import ServingSpec
from pratique_server.engine.launcher import STOP_SECONDS, CoreProcess, launch_core
from pratique_server.engine.messages import (
    Cancel,
    LoadFailed,
    Ready,
    Report,
    Shutdown,
    Submit,
    encoder,
    make_error,
    output_decoder,
)
from pratique_server.engine.protocol import (
    DeadlineExceededError,
    EngineDeadError,
    EngineIdentity,
    EngineOverloadedError,
    EngineStats,
    ExecutionRequest,
    LoadError,
    RequestInvalidError,
    StepEvent,
)
from pratique_server.engine.step_engine import StepStats
from pratique_server.engine.streams import EventStream, LiveStreams

logger = logging.getLogger(__name__)

# A core that reports nothing for this long while it should is hung; longer than any step on the smallest machine.
SILENCE_SECONDS_MAX: Final = 120.0
WATCH_SECONDS: Final = 1.0


class EngineClient:
    """See ``Engine``. Made by ``start_engine``; all methods run in the event loop that made it."""

    def __init__(self, spec: ServingSpec) -> None:
        self._spec = spec
        self._streams = LiveStreams(limit=spec.limits.max_queued + spec.engine.max_num_seqs)
        self._epoch = 0
        self._core: CoreProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._identity: EngineIdentity | None = None
        self._stats = StepStats()
        self._heard_at = time.monotonic()
        self._stale = 0
        self._core_stale = 0
        self._unsent_cancels: list[bytes] = []
        self._dead = asyncio.Event()
        self._draining = False
        self._closed = False

    async def identity(self) -> EngineIdentity:
        if self._identity is None or self._dead.is_set():
            raise EngineDeadError("The engine process is not running.")
        return self._identity

    async def start(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
        """See ``Engine.start``."""
        stream = self._submit(request)
        try:
            while (event := await self._next(stream, request.deadline)) is not None:
                yield event
        finally:
            self._release(stream)

    def _submit(self, request: ExecutionRequest) -> EventStream:
        if self._dead.is_set() or self._core is None:
            raise EngineDeadError("The engine process is not running.")
        if self._draining:
            raise EngineOverloadedError("The engine is draining and takes no new requests.")
        stream = self._streams.open(request.request_id, reserved=request.reserved)
        try:
            frame = encoder.encode(Submit(epoch=self._epoch, version=stream.version, request=request))
        except OverflowError as error:  # a seed or an id that no 64-bit integer holds
            self._streams.close(stream)
            raise RequestInvalidError("The request holds an integer of more than 64 bits.") from error
        if not self._core.ends.send_request(frame):
            self._streams.close(stream)
            raise EngineOverloadedError("The engine does not take requests quickly enough.")
        return stream

    async def _next(self, stream: EventStream, deadline: float | None) -> StepEvent | None:
        """The core ends late requests itself; this also holds when a long step keeps it from looking."""
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return await stream.next(wait_seconds=timeout)
        except TimeoutError as error:
            raise DeadlineExceededError("The request's deadline passed before it finished.") from error

    def _release(self, stream: EventStream) -> None:
        """Forget the stream; tell the core unless it has ended the request itself."""
        if not stream.ended:
            self._send_cancel(stream)
        stream.abort("The request was closed.")
        self._streams.close(stream)

    async def cancel(self, request_id: str) -> None:
        stream = self._streams.get(request_id)
        if stream is None:
            return
        if not stream.ended:
            self._send_cancel(stream)
        stream.abort("The request was cancelled.")

    def _send_cancel(self, stream: EventStream) -> None:
        if self._core is None or self._dead.is_set():
            return
        frame = encoder.encode(Cancel(epoch=self._epoch, request_id=stream.request_id, version=stream.version))
        if not self._core.ends.send_control(frame):
            self._unsent_cancels.append(frame)

    async def stats(self) -> EngineStats:
        return self._stats.report(
            epoch=self._epoch,
            stale_outputs=self._stale + self._core_stale,
            heartbeat_age_seconds=time.monotonic() - self._heard_at,
        )

    async def drain(self, deadline: float) -> None:
        self._draining = True
        await self._streams.wait_idle(wait_seconds=deadline - time.monotonic())

    async def wait_dead(self) -> None:
        """Return when the current epoch's process is gone or silent (or the client is closed)."""
        await self._dead.wait()

    async def restart(self) -> EngineIdentity:
        """Begin a new epoch, ending the old one's process and streams; returns what was loaded now.

        Raises ``LoadError`` when it cannot load, ``EngineDeadError`` when its process ended while loading. Files
        may have changed since: whoever restarts must verify again.
        """
        assert not self._closed, "a closed engine is not restarted"
        await self._end_epoch("The engine is being restarted.")
        self._epoch += 1
        self._stats, self._core_stale, self._unsent_cancels = StepStats(), 0, []
        core = await launch_core(self._spec, epoch=self._epoch)
        self._core = core
        try:
            self._identity = await self._wait_ready(core)
        except BaseException:
            await self._end_epoch("The engine did not load.", grace=0.0)
            raise
        self._heard_at = time.monotonic()
        self._dead.clear()
        self._tasks = [asyncio.create_task(self._receive(core)), asyncio.create_task(self._watch(core))]
        logger.info("Started engine epoch=%d pid=%d", self._epoch, core.process.pid)
        return self._identity

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._end_epoch("The engine was closed.")

    async def _end_epoch(self, reason: str, *, grace: float | None = None) -> None:
        self._die(reason)
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        core, self._core = self._core, None
        if core is not None:
            asked = core.ends.send_control(encoder.encode(Shutdown(epoch=self._epoch)))
            await core.stop(grace=(STOP_SECONDS if grace is None else grace) if asked else 0.0)

    def _die(self, reason: str) -> None:
        if not self._dead.is_set():
            self._dead.set()
            self._streams.fail_all(EngineDeadError(reason))

    async def _wait_ready(self, core: CoreProcess) -> EngineIdentity:
        receive = asyncio.ensure_future(core.ends.receive_output())
        ended = asyncio.ensure_future(core.process.wait())
        try:
            await asyncio.wait({receive, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not receive.done():
                # Its last words may still be on the way.
                await asyncio.wait({receive}, timeout=STOP_SECONDS / 10)
            if not receive.done():
                raise EngineDeadError(f"The engine process ended while it loaded: {describe_exit(ended.result())}.")
            message = output_decoder.decode(receive.result())
        finally:
            for waiter in (receive, ended):
                waiter.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await waiter
        if isinstance(message, LoadFailed):
            raise LoadError(message.message, part=message.part)
        assert isinstance(message, Ready), f"the first message of an epoch was {type(message).__name__}"
        return message.identity

    async def _receive(self, core: CoreProcess) -> None:
        """Hand out reports for as long as the epoch lives. If that fails, no stream can go on: all of them are told at once,
        instead of each waiting for tokens that nobody reads any more."""
        try:
            await self._receive_reports(core)
        except Exception:
            logger.exception("Could not read the engine's reports epoch=%d", self._epoch)
            self._die("The engine's reports cannot be read.")

    async def _receive_reports(self, core: CoreProcess) -> None:
        while True:
            message = output_decoder.decode(await core.ends.receive_output())
            if message.epoch != self._epoch or not isinstance(message, Report):
                self._stale += 1
                continue
            self._heard_at = time.monotonic()
            self._stats, self._core_stale = message.stats, message.stale_messages
            self._deliver(message)
            self._unsent_cancels = [frame for frame in self._unsent_cancels if not core.ends.send_control(frame)]

    def _deliver(self, report: Report) -> None:
        for item in report.events:
            stream = self._streams.get(item.event.request_id, item.version)
            if stream is None or stream.ended:
                self._stale += 1
            else:
                stream.push(item.event)
        for failure in report.failures:
            stream = self._streams.get(failure.request_id, failure.version)
            if stream is None or stream.ended:
                self._stale += 1
            else:
                stream.fail(make_error(failure.kind, failure.message))

    async def _watch(self, core: CoreProcess) -> None:
        ended = asyncio.create_task(core.process.wait())
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=WATCH_SECONDS)
                if time.monotonic() - self._heard_at > SILENCE_SECONDS_MAX:
                    logger.error("Engine fell silent epoch=%d", self._epoch)
                    self._die(f"The engine process reported nothing for {SILENCE_SECONDS_MAX:.0f} seconds.")
                    return
            logger.error("Engine process ended epoch=%d: %s", self._epoch, describe_exit(ended.result()))
            self._die(f"The engine process ended: {describe_exit(ended.result())}.")
        finally:
            ended.cancel()


async def start_engine(spec: ServingSpec) -> EngineClient:
    """Start the engine-core process and return once it has loaded; raises ``EngineError`` with a sentence otherwise."""
    client = EngineClient(spec)
    await client.restart()
    return client


def describe_exit(code: int) -> str:
    """Say how a process ended, for a person."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, as when memory runs out" if -code == signal.SIGKILL else name
