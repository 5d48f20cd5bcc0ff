"""Keeps one verified engine behind the API: load → gate → watch; a dead or silent engine is replaced by a new one, a bounded number of
times, and the gate must pass again before the pod is ready again.

Owner of the verdict, of ``PodStatus.engine_up`` and of the engine slot; everybody else only reads them.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from pratique_contract import Reason, ServingSpec, Verdict, VerdictResult
from pratique_server.config import EngineLimits
from pratique_server.engine.protocol import EngineError
from pratique_server.gate.conclude import tell_verdict
from pratique_server.gate.holder import VerdictHolder
from pratique_server.life.loading import Loaded, LoadFailedError, ServedEngine, StartEngine, load
from pratique_server.management.status import EngineReport, PodStatus

CLOSE_SECONDS_MAX: Final = 10.0
_log = logging.getLogger(__name__)


class Publisher(Protocol):
    """Puts a loaded release behind the API port, and returns once the port answers."""

    async def __call__(self, loaded: Loaded) -> None: ...


class ReleaseKeeper(Protocol):
    """Proves a loaded release and looks after it."""

    async def verify(self, loaded: Loaded) -> Verdict:
        """The verdict, before anybody is served."""
        ...

    async def look_after(self, loaded: Loaded) -> None:
        """While it serves; runs until it is cancelled or has nothing left to do."""
        ...

    def lose(self) -> None:
        """The engine is gone."""
        ...


class EngineGoneError(Exception):
    """The engine could not be kept running; the process should end, so that its container is restarted."""


class Supervisor:
    """``run`` returns only by raising: ``EngineGoneError``, or our own fault. After a failed load or gate it waits for ever."""

    def __init__(
        self,
        spec: ServingSpec,
        *,
        start_engine: StartEngine,
        publish: Publisher,
        keeper: ReleaseKeeper,
        holder: VerdictHolder,
        status: PodStatus,
        limits: EngineLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._start_engine = start_engine
        self._publish = publish
        self._keeper = keeper
        self._holder = holder
        self._status = status
        self._limits = limits
        self._clock = clock
        self._engine: ServedEngine | None = None
        self._restarts: list[float] = []

    async def run(self) -> None:
        """Load, verify, watch, and again after each loss."""
        while True:
            try:
                loaded = await load(self._spec, self._start_engine if self._engine is None else self._restart_engine)
            except LoadFailedError as error:
                await self.close()
                if not self._restarts:
                    self._fail(error.reason, error.message)
                    await _for_ever()
                _log.warning("The engine could not be restarted: %s", error.message)
            else:
                await self._serve_until_lost(loaded)
            await self._back_off()

    async def close(self) -> None:
        """Stop the engine; live requests end with an error."""
        engine, self._engine = self._engine, None
        self._status.engine_up = False
        if engine is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await engine.close()
        except Exception:  # noqa: BLE001 - a broken engine may not keep the process from going on
            _log.exception("Could not close the engine")

    async def _restart_engine(self, spec: ServingSpec) -> ServedEngine:
        """A new epoch of the same engine: what still arrives of the old one is dropped."""
        assert self._engine is not None
        await self._engine.restart()
        return self._engine

    async def _serve_until_lost(self, loaded: Loaded) -> None:
        self._engine = loaded.engine
        await self._poll(loaded.engine)
        self._status.manifest = loaded.manifest
        self._status.engine_up = True
        self._holder.set_pending(Reason.VERIFYING, "The gate is proving the loaded release")
        await self._publish(loaded)
        gate = asyncio.create_task(self._run_gate(loaded))
        try:
            message = await self._watch(loaded.engine)
        finally:
            gate.cancel()
            await asyncio.gather(gate, return_exceptions=True)
            self._keeper.lose()
        _log.error("Lost the engine: %s", message)
        self._holder.set_pending(Reason.ENGINE_UNREACHABLE, f"The engine is being restarted: {message}")
        self._status.engine_up = False

    async def _run_gate(self, loaded: Loaded) -> None:
        """Until there is a verdict on the release: running out of time is one on the host, and stands only until the next try."""
        try:
            while (verdict := await self._keeper.verify(loaded)).reason is Reason.PROBE_TIMEOUT:
                self._tell(verdict)
                await asyncio.sleep(self._limits.gate_again_seconds)
        except Exception as error:  # noqa: BLE001 - a pod without a verdict would wait for ever
            # Our own fault, and no verdict: the pod stays out, and says why.
            _log.exception("The gate could not be run")
            self._fail(Reason.GATE_FAILED, f"The gate could not be run: {error!r}")
            return
        self._tell(verdict)
        if verdict.passed:
            await self._keeper.look_after(loaded)

    def _tell(self, verdict: Verdict) -> None:
        self._holder.set(verdict)
        tell_verdict(verdict)

    async def _watch(self, engine: ServedEngine) -> str:
        """Read the engine's report again and again; return what is wrong once something is."""
        dead = asyncio.create_task(engine.wait_dead())
        try:
            while True:
                await asyncio.wait({dead}, timeout=self._limits.poll_seconds)
                if dead.done():
                    return "the engine's process is gone"
                problem = await self._poll(engine)
                if problem is not None:
                    return problem
        finally:
            dead.cancel()

    async def _poll(self, engine: ServedEngine) -> str | None:
        try:
            stats = await engine.stats()
        except EngineError as error:
            return str(error) or "the engine stopped"
        self._status.report = EngineReport(stats=stats, read_at=self._clock())
        age = stats.heartbeat_age_seconds
        return f"no sign of life for {age:.0f} s" if age > self._limits.silence_seconds_max else None

    async def _back_off(self) -> None:
        """Wait before the next start. Raises when there were too many in the window."""
        now, limits = self._clock(), self._limits
        self._restarts = [at for at in self._restarts if now - at < limits.restart_window_seconds]
        if len(self._restarts) >= limits.restarts_max:
            message = f"The engine was lost {limits.restarts_max + 1} times in a row"
            self._fail(Reason.ENGINE_UNREACHABLE, message)
            raise EngineGoneError(message)
        await asyncio.sleep(limits.restart_backoff_seconds * 2 ** len(self._restarts))
        self._restarts.append(now)

    def _fail(self, reason: Reason, message: str) -> None:
        verdict = Verdict(
            result=VerdictResult.FAIL,
            reason=reason,
            message=message,
            expected=self._spec.release.fingerprint,
            policy=self._spec.release.policy,
        )
        self._tell(verdict)


async def _for_ever() -> None:
    await asyncio.Event().wait()
