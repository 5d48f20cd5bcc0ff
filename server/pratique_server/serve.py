"""``run(spec)``: the whole serving process. Management port first (its own thread, so that probes say why from the first second on),
then the model, then the API port, then the gate through that port; ready when the verdict passed; SIGTERM drains.

Exit codes: 0 after a drain, 1 when the engine could not be kept running or a port is taken. A release that cannot be loaded or does
not pass the gate does not end the process: a restart would not cure it, and the verdict has to be readable.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from pathlib import Path
from typing import Final

from pratique_contract import ServingSpec
from pratique_server.api.app import make_app
from pratique_server.api.auth import ApiKeys
from pratique_server.api.live import LiveRequests
from pratique_server.api.state import ApiState, EngineSlot, Release
from pratique_server.config import ApiLimits, EngineLimits
from pratique_server.engine.client import start_engine
from pratique_server.engine.protocol import Engine
from pratique_server.gate.holder import VerdictHolder
from pratique_server.gate.record_file import RECORDED_PATH
from pratique_server.http_server import HttpServer
from pratique_server.life.draining import Drain
from pratique_server.life.idle import IdleTime
from pratique_server.life.loading import Loaded, StartEngine
from pratique_server.life.recording import RecordDesk
from pratique_server.life.supervisor import EngineGoneError, Supervisor
from pratique_server.life.verification import Verification
from pratique_server.logs import configure_logs
from pratique_server.management.app import ManagementApp
from pratique_server.management.status import PodStatus
from pratique_server.management.thread import ManagementThread, bind
from pratique_server.metrics import Metrics, PodCollector

GOODBYE_SECONDS: Final = 1.0
# How long a thread may keep the interpreter from another one that wants it. Probes are answered by a thread of their own, which asks
# for it several times in each answer; Python's default of 5 ms is longer than a whole answer should take (docs/decisions/0016).
SWITCH_SECONDS: Final = 0.0001
BEAT_SECONDS: Final = 1.0
_log = logging.getLogger(__name__)


def run(spec: ServingSpec) -> int:
    """Serve until told to stop; the exit code."""
    configure_logs()
    make_offline()
    keep_torch_out()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        process = ServingProcess(spec)
    except OSError as error:
        _log.error("Could not open the ports: %s", error)
        return 1
    return asyncio.run(process.run())


def make_offline() -> None:
    """No library may reach for the network or a home directory: the container has neither."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    home = Path(os.environ.get("HOME") or "/nonexistent")
    if "HF_HOME" not in os.environ and not os.access(home, os.W_OK):
        # Named, never written: asking which temporary folder is usable fails where there is none.
        os.environ["HF_HOME"] = str(Path(os.environ.get("TMPDIR") or "/tmp") / "huggingface")  # noqa: S108


def keep_torch_out() -> None:
    """Make ``import torch`` fail in this process: tensors live in the engine core. transformers, here for the tokenizer alone,
    would import it when it finds it: 2 s of processor time and 200 MiB per pod for nothing."""
    if "torch" not in sys.modules:
        # None is how the import system is told that a module is absent (importlib: "sys.modules").
        sys.modules["torch"] = None  # type: ignore[assignment]
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"


class ServingProcess:
    """Binds both ports on construction. The parameters beside ``spec`` are for tests."""

    def __init__(
        self,
        spec: ServingSpec,
        *,
        start_engine: StartEngine = start_engine,
        api_limits: ApiLimits | None = None,
        engine_limits: EngineLimits | None = None,
        recorded_path: Path = RECORDED_PATH,
    ) -> None:
        self._spec = spec
        self._api_limits = api_limits or ApiLimits()
        self._engine_limits = engine_limits or EngineLimits()
        self._start_engine = start_engine
        self._recorded_path = recorded_path
        self._desk: RecordDesk | None = None
        self.socket: socket.socket = bind(spec.host, spec.api_port)
        self.api_port: int = self.socket.getsockname()[1]
        self.holder = VerdictHolder(policy=spec.release.policy)
        self.status = PodStatus(self.holder, heartbeat_seconds_max=self._engine_limits.heartbeat_seconds_max)
        self.metrics = Metrics()
        self.metrics.registry.register(
            PodCollector(verdict=self.holder.current, stats=lambda: self.status.stats, model=spec.served_model_name)
        )
        self._probe_token = secrets.token_urlsafe(32)
        self._slot = EngineSlot()
        self._state: ApiState | None = None
        self._server: HttpServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        app = ManagementApp(self.status, self.metrics, drain=self._drain_from_thread, desk=lambda: self._desk)
        try:
            self._management = ManagementThread(app, host=spec.host, port=spec.management_port)
        except OSError:
            self.socket.close()
            raise
        self.management_port: int = self._management.port
        self.exit_code: int | None = None

    @property
    def engine(self) -> Engine:
        """The engine that answers now."""
        return self._slot.get()

    async def run(self) -> int:
        """The whole life; returns the exit code."""
        self.exit_code = await self._run()
        return self.exit_code

    async def _run(self) -> int:
        self.loop = asyncio.get_running_loop()
        self._live = LiveRequests()
        self._management.start()
        self._stop = asyncio.Event()
        self._drain = Drain(self._spec.drain, status=self.status, live=self._live)
        self._watch_signals()
        supervisor = Supervisor(
            self._spec,
            start_engine=self._start_engine,
            publish=self._publish,
            keeper=self._make_verification(),
            holder=self.holder,
            status=self.status,
            limits=self._engine_limits,
        )
        beat = asyncio.create_task(self._beat())
        life = asyncio.create_task(supervisor.run())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({life, stop}, return_when=asyncio.FIRST_COMPLETED)
            return await self._end(life)
        finally:
            for task in (stop, life, beat):
                task.cancel()
            await asyncio.gather(stop, life, beat, return_exceptions=True)
            await supervisor.close()
            await self._close_ports()

    def _make_verification(self) -> Verification:
        idle = IdleTime(self._live)
        self._desk = RecordDesk(self._spec, idle)
        return Verification(
            self._spec.model_copy(update={"api_port": self.api_port}),
            probe_token=self._probe_token,
            holder=self.holder,
            desk=self._desk,
            idle=idle,
            metrics=self.metrics,
            recorded_path=self._recorded_path,
            recorded_poll_seconds=self._engine_limits.recorded_poll_seconds,
        )

    def stop(self, *, hurry: bool = False) -> None:
        """Begin the drain; again, or with ``hurry``, cut it short. Call from the event loop."""
        if self._stop.is_set() or hurry:
            self._drain.hurry.set()
        self._stop.set()

    async def _end(self, life: "asyncio.Task[None]") -> int:
        if not self._stop.is_set():
            try:
                life.result()
            except EngineGoneError as error:
                _log.error("Ending the process: %s", error)
            except Exception:  # noqa: BLE001 - the last place where it can be logged
                _log.exception("Ending the process after an unexpected error")
            return 1
        cut = await self._drain.run()
        _log.info("Drained; %d requests are cut", cut)
        return 0

    async def _beat(self) -> None:
        """Shows the management thread that this loop turns; independent of loading and of the engine."""
        while True:
            self.status.beat()
            await asyncio.sleep(BEAT_SECONDS)

    async def _publish(self, loaded: Loaded) -> None:
        """Put the release behind the API port; the port opens with the first one."""
        self._slot.set(loaded.engine)
        release = Release.of(loaded.manifest, self._spec, vocab_size=loaded.vocab_size)
        if self._state is not None:
            self._state.release, self._state.renderer = release, loaded.renderer
            return
        keys_path = self._spec.api_keys_path
        self._state = ApiState(
            spec=self._spec,
            release=release,
            renderer=loaded.renderer,
            engine=self._slot,
            status=self.status,
            metrics=self.metrics,
            probe_token=self._probe_token,
            keys=ApiKeys(Path(keys_path)) if keys_path is not None else None,
            limits=self._api_limits,
            live=self._live,
        )
        self._server = HttpServer(
            make_app(self._state),
            header_seconds_max=self._api_limits.header_seconds_max,
            keep_alive_seconds=self._api_limits.keep_alive_seconds,
        )
        self._serving = asyncio.create_task(self._server.run_on(self.socket))
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait({listening, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._serving.done():
            self._serving.result()
            raise RuntimeError("The API server ended while it started")

    def _watch_signals(self) -> None:
        assert self.loop is not None
        try:
            self.loop.add_signal_handler(signal.SIGTERM, self.stop)
            # A person at a terminal does not wait for endpoints to go away.
            self.loop.add_signal_handler(signal.SIGINT, lambda: self.stop(hurry=True))
        except (ValueError, RuntimeError):
            _log.debug("Not in the main thread: signals are the caller's")

    def _drain_from_thread(self) -> None:
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.status.begin_drain)

    async def _close_ports(self) -> None:
        if self._server is not None and self._serving is not None:
            # Streams that were cut still have their error event to send.
            try:
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._live.wait_empty()
            except TimeoutError:
                _log.warning("%d requests did not end in time", len(self._live))
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
        if self._state is not None:
            self._state.text_pool.shutdown(wait=False, cancel_futures=True)
        self.socket.close()
        self._management.stop()
