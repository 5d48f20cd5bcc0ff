"""The three ipc sockets between API process and engine core, in a private folder of their own.

Control (cancel, shutdown), requests and outputs never share a pipe, so that bulk in one cannot hold up another.
The API process binds, the core connects. Every pipe is bounded; a full one is an answer ("overloaded", "wait"),
never a growing queue.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq
import zmq.asyncio

SPEC_FILE: Final = "spec.json"
SOCKETS: Final = ("control", "requests", "outputs")
LINGER_SECONDS: Final = 1.0
# Messages that each end of a pipe holds. Control must never be the pipe that is full: there is at most one
# cancellation for every request, and its pipe holds as many as both ends of the requests pipe and the live requests.
REQUESTS_PIPE_MAX: Final = 1024
CONTROL_PIPE_MAX: Final = 16 * REQUESTS_PIPE_MAX
OUTPUTS_PIPE_MAX: Final = 256


def _address(directory: Path, name: str) -> str:
    return f"ipc://{directory / name}.sock"


def fits(directory: Path) -> bool:
    """Whether the sockets' paths in this folder are short enough for the kernel."""
    longest = max((_address(directory, name) for name in SOCKETS), key=len).removeprefix("ipc://")
    return len(longest.encode()) <= zmq.IPC_PATH_MAX_LEN


@dataclass(frozen=True)
class ClientSockets:
    """The API process's ends. Sending never waits; outputs are awaited."""

    control: "zmq.Socket[bytes]"
    requests: "zmq.Socket[bytes]"
    outputs: zmq.asyncio.Socket

    def send_control(self, frame: bytes) -> bool:
        return _try_send(self.control, frame)

    def send_request(self, frame: bytes) -> bool:
        return _try_send(self.requests, frame)

    async def receive_output(self) -> bytes:
        return bytes(await self.outputs.recv())

    def close(self) -> None:
        for socket in (self.control, self.requests, self.outputs):
            socket.close(linger=0)


def open_client_sockets(directory: Path) -> ClientSockets:
    """Bind in ``directory``, which only this user may enter."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    control, requests = context.socket(zmq.PUSH), context.socket(zmq.PUSH)
    outputs = zmq.asyncio.Context.instance().socket(zmq.PULL)
    control.set_hwm(CONTROL_PIPE_MAX)
    requests.set_hwm(REQUESTS_PIPE_MAX)
    outputs.set_hwm(OUTPUTS_PIPE_MAX)
    control.bind(_address(directory, "control"))
    requests.bind(_address(directory, "requests"))
    outputs.bind(_address(directory, "outputs"))
    return ClientSockets(control, requests, outputs)


@dataclass(frozen=True)
class CoreSockets:
    """The engine core's ends, used by its one loop."""

    control: "zmq.Socket[bytes]"
    requests: "zmq.Socket[bytes]"
    outputs: "zmq.Socket[bytes]"

    def wait_for_input(self, *, timeout: float) -> None:
        poller = zmq.Poller()
        poller.register(self.control, zmq.POLLIN)
        poller.register(self.requests, zmq.POLLIN)
        poller.poll(int(timeout * 1000))

    def receive_control(self) -> bytes | None:
        return _try_receive(self.control)

    def receive_request(self) -> bytes | None:
        return _try_receive(self.requests)

    def send_output(self, frame: bytes, *, timeout: float) -> bool:
        """Whether the frame was handed over within ``timeout`` seconds."""
        return bool(self.outputs.poll(int(timeout * 1000), zmq.POLLOUT)) and _try_send(self.outputs, frame)


@contextlib.contextmanager
def open_core_sockets(directory: Path) -> Iterator[CoreSockets]:
    with zmq.Context() as context:
        control, requests, outputs = context.socket(zmq.PULL), context.socket(zmq.PULL), context.socket(zmq.PUSH)
        control.set_hwm(CONTROL_PIPE_MAX)
        requests.set_hwm(REQUESTS_PIPE_MAX)
        outputs.set_hwm(OUTPUTS_PIPE_MAX)
        ends = CoreSockets(control, requests, outputs)
        try:
            control.connect(_address(directory, "control"))
            requests.connect(_address(directory, "requests"))
            outputs.connect(_address(directory, "outputs"))
            yield ends
        finally:
            for socket in (control, requests, outputs):
                socket.close(linger=int(LINGER_SECONDS * 1000))


def _try_send(socket: "zmq.Socket[bytes]", frame: bytes) -> bool:
    try:
        socket.send(frame, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def _try_receive(socket: "zmq.Socket[bytes]") -> bytes | None:
    try:
        return bytes(socket.recv(zmq.NOBLOCK))
    except zmq.Again:
        return None
