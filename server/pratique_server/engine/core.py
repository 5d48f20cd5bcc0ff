"""The engine-core process: no HTTP, no text. Takes requests from a socket, steps the engine, sends what came out.

Started by ``launcher`` as ``python -m pratique_server.engine.core DIRECTORY EPOCH``; the directory holds the
specification and the sockets. One loop owns the engine: control messages first (a cancellation is never behind
bulk), then new requests, then one step, then one report. It ends when told to, when its parent is gone (standard
input closes), or when a step fails: then its state cannot be trusted, and a new epoch starts from nothing.
"""

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec
import zmq

from pratique_contract import ServingSpec
from pratique_server.engine import sockets
from pratique_server.engine.messages import (
    Cancel,
    EventItem,
    FailureItem,
    LoadFailed,
    OutputMessage,
    Ready,
    Report,
    Shutdown,
    control_decoder,
    encoder,
    error_kind,
    submit_decoder,
)
from pratique_server.engine.protocol import EngineError, LoadError
from pratique_server.engine.step_engine import StepEngine
from pratique_server.imports import MODELS, import_large
from pratique_server.logs import configure_logs

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 0.25
# Requests taken in between two steps, so that a flood of them cannot hold up the running ones.
REQUESTS_PER_STEP_MAX: Final = 64


class CoreLoop:
    """Drives one engine between three sockets. ``versions`` maps each live request to the version its client gave it."""

    def __init__(self, engine: StepEngine, ends: sockets.CoreSockets, *, epoch: int) -> None:
        self._engine = engine
        self._ends = ends
        self._epoch = epoch
        self._versions: dict[str, int] = {}
        self._newest_version = 0
        self._cancelled_early: set[int] = set()
        self._failures: list[FailureItem] = []
        self._stale = 0
        self._running = True

    def run(self) -> None:
        self._send(Ready(epoch=self._epoch, identity=self._engine.identity()))
        while self._running:
            if not self._engine.has_work() and not self._failures:
                self._ends.wait_for_input(timeout=HEARTBEAT_SECONDS)
            self._take_control()
            self._take_requests()
            if self._running:
                self._advance()

    def _advance(self) -> None:
        events: list[EventItem] = []
        if self._engine.has_work():
            output = self._engine.step()
            for event in output.events:
                version = self._versions[event.request_id]
                events.append(EventItem(version=version, event=event))
                if event.finish is not None:
                    del self._versions[event.request_id]
            for failure in output.failures:
                version = self._versions.pop(failure.request_id)
                self._fail(failure.request_id, version, failure.error)
        failures, self._failures = self._failures, []
        stats = self._engine.stats()
        self._send(Report(epoch=self._epoch, events=events, failures=failures, stats=stats, stale_messages=self._stale))

    def _take_control(self) -> None:
        while (frame := self._ends.receive_control()) is not None:
            message = control_decoder.decode(frame)
            if message.epoch != self._epoch:
                self._stale += 1
            elif isinstance(message, Shutdown):
                self._running = False
            else:
                self._cancel(message)

    def _cancel(self, message: Cancel) -> None:
        if self._versions.get(message.request_id) == message.version:
            self._engine.cancel(message.request_id)
            del self._versions[message.request_id]
        elif message.version > self._newest_version:
            self._cancelled_early.add(message.version)
        else:
            self._stale += 1

    def _take_requests(self) -> None:
        for _ in range(REQUESTS_PER_STEP_MAX):
            frame = self._ends.receive_request()
            if frame is None:
                return
            message = submit_decoder.decode(frame)
            self._newest_version = max(self._newest_version, message.version)
            if message.epoch != self._epoch or message.version in self._cancelled_early:
                self._cancelled_early.discard(message.version)
                self._stale += message.epoch != self._epoch
                continue
            # The client reuses an id only once it is done with it; the cancellation that says so may still be on its way.
            if self._versions.pop(message.request.request_id, None) is not None:
                self._engine.cancel(message.request.request_id)
            try:
                self._engine.add_request(message.request)
            except EngineError as error:
                self._fail(message.request.request_id, message.version, error)
            else:
                self._versions[message.request.request_id] = message.version

    def _fail(self, request_id: str, version: int, error: EngineError) -> None:
        item = FailureItem(request_id=request_id, version=version, kind=error_kind(error), message=str(error))
        self._failures.append(item)

    def _send(self, message: OutputMessage) -> None:
        """Wait while the API process does not read: the engine pauses, and cancellations still arrive."""
        frame = encoder.encode(message)
        while self._running and not self._ends.send_output(frame, timeout=HEARTBEAT_SECONDS):
            self._take_control()


def exit_with_parent(directory: Path, *, parent_fd: int = 0) -> None:
    """Watch the pipe whose other end only the parent holds. When it closes, however the parent ended, remove the folder
    it can no longer remove (a container's /tmp may outlive a restart of the container) and end this process."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(parent_fd, 1024):
                pass
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def main(directory: Path, epoch: int) -> int:
    configure_logs(stream=sys.stderr)  # a pod's log is one: every line of it is JSON
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole terminal group; the parent drains and tells us
    exit_with_parent(directory)
    spec = ServingSpec.from_json_value(msgspec.json.decode((directory / sockets.SPEC_FILE).read_bytes()))
    with sockets.open_core_sockets(directory) as ends:
        try:
            # Here and not above: torch must not be imported before the parent watch runs.
            import_large(MODELS, "pratique_server.engine.build")
            from pratique_server.engine.build import build_engine, pin_threads

            pin_threads()
            engine = build_engine(spec)
        except LoadError as error:
            ends.send_output(
                encoder.encode(LoadFailed(epoch=epoch, message=str(error), part=error.part)),
                timeout=sockets.LINGER_SECONDS,
            )
            return 1
        CoreLoop(engine, ends, epoch=epoch).run()
    return 0


if __name__ == "__main__":
    try:
        code = main(Path(sys.argv[1]), int(sys.argv[2]))
    except zmq.ZMQError:
        logger.exception("Lost the sockets to the API process")
        code = 1
    sys.exit(code)
