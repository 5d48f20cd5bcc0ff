"""Frames between the API process and the engine core: msgpack of these structs, one struct a frame.

Every message names the epoch it belongs to, and those about a request also its id and version. A receiver drops
and counts what is not of its epoch, or of a request version it does not know: after a restart or a cancellation
nothing old can reach a new stream.
"""

from typing import Final

import msgspec

from pratique_server.engine import protocol
from pratique_server.engine.protocol import EngineError, EngineIdentity, ExecutionRequest, StepEvent
from pratique_server.engine.step_engine import StepStats


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Requests socket: queue this request."""

    epoch: int
    version: int
    request: ExecutionRequest


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Control socket. May overtake the request it names; the core then drops the request when it arrives."""

    epoch: int
    request_id: str
    version: int


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Control socket: stop at once."""

    epoch: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Outputs socket, first message of an epoch that loaded."""

    epoch: int
    identity: EngineIdentity


class LoadFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Outputs socket, only message of an epoch that did not load: see ``LoadError``."""

    epoch: int
    message: str
    part: str


class EventItem(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of one request."""

    version: int
    event: StepEvent


class FailureItem(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was refused or ended without a finish. ``kind`` names an error class of the engine seam."""

    request_id: str
    version: int
    kind: str
    message: str


class Report(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Outputs socket, after every step and at least every heartbeat interval: what came out, and the counts after it."""

    epoch: int
    events: list[EventItem] = []
    failures: list[FailureItem] = []
    stats: StepStats
    stale_messages: int = 0


ControlMessage = Cancel | Shutdown
OutputMessage = Ready | LoadFailed | Report

encoder: Final = msgspec.msgpack.Encoder()
submit_decoder: Final = msgspec.msgpack.Decoder(Submit)
control_decoder: Final[msgspec.msgpack.Decoder[ControlMessage]] = msgspec.msgpack.Decoder(ControlMessage)
output_decoder: Final[msgspec.msgpack.Decoder[OutputMessage]] = msgspec.msgpack.Decoder(OutputMessage)

_ERRORS: Final[dict[str, type[EngineError]]] = {
    error.__name__: error
    for error in (
        protocol.EngineError,
        protocol.EngineOverloadedError,
        protocol.RequestInvalidError,
        protocol.RequestTooLargeError,
        protocol.DuplicateRequestError,
        protocol.DeadlineExceededError,
        protocol.RequestAbortedError,
    )
}


def error_kind(error: EngineError) -> str:
    """Name under which an error travels: its own class if it crosses the seam, else the base class."""
    name = type(error).__name__
    return name if name in _ERRORS else EngineError.__name__


def make_error(kind: str, message: str) -> EngineError:
    return _ERRORS.get(kind, EngineError)(message)
