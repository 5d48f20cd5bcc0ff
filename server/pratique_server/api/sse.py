"""A chat stream as a state machine: ``role → content* → finish (exactly one, empty delta) → usage? → [DONE]``, or one error event
and ``[DONE]`` from any point before the end. Each method returns the bytes of its event; a call out of order is our bug.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import msgspec

from pratique_server.api.answer import Piece, UsageCounts
from pratique_server.api.errors import error_body
from pratique_server.errors import PratiqueError
from pratique_server.text.renderer import Rendered

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"


class _State(Enum):
    START = auto()
    CONTENT = auto()
    FINISHED = auto()
    ENDED = auto()


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """What every object of one answer repeats."""

    id: str
    created: int
    model: str
    fingerprint: str | None

    def to_json_value(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class ChatStream:
    """One answer's events. ``include_usage`` adds the usage event, ``continuous_usage`` a running count on every chunk."""

    def __init__(
        self, envelope: Envelope, *, include_usage: bool, continuous_usage: bool, return_token_ids: bool
    ) -> None:
        self._base = envelope.to_json_value("chat.completion.chunk")
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._return_token_ids = return_token_ids
        self._state = _State.START

    @property
    def ended(self) -> bool:
        return self._state is _State.ENDED

    def role(self, prompt: Rendered, usage: UsageCounts) -> bytes:
        self._move(_State.START, _State.CONTENT)
        extra = {"prompt_token_ids": prompt.ids, "prompt_text": prompt.text} if self._return_token_ids else {}
        return self._chunk({"role": "assistant", "content": ""}, None, usage, extra)

    def content(self, piece: Piece, usage: UsageCounts) -> bytes:
        self._move(_State.CONTENT, _State.CONTENT)
        return self._chunk({"content": piece.text}, piece, usage, {})

    def finish(self, piece: Piece, usage: UsageCounts) -> bytes:
        """``piece`` carries the reason, and ids and log-probabilities of tokens that show no text (the stop token)."""
        assert piece.finish is not None, "a finish event needs its reason"
        assert not piece.text, "clients drop text that comes with the finish reason"
        self._move(_State.CONTENT, _State.FINISHED)
        return self._chunk({}, piece, usage, {})

    def end(self, usage: UsageCounts) -> bytes:
        """The usage event, if asked for, and the end mark."""
        self._move(_State.FINISHED, _State.ENDED)
        if not self._include_usage:
            return DONE
        return _event({**self._base, "choices": [], "usage": usage.to_json_value()}) + DONE

    def error(self, error: PratiqueError) -> bytes:
        """The one error event and the end mark. Never after a finish: that answer was complete."""
        assert self._state in (_State.START, _State.CONTENT), f"error event in state {self._state}"
        self._state = _State.ENDED
        return b"data: " + error_body(error) + b"\n\n" + DONE

    def _chunk(self, delta: dict[str, str], piece: Piece | None, usage: UsageCounts, extra: dict[str, Any]) -> bytes:
        choice: dict[str, Any] = {
            "index": 0,
            "delta": delta,
            "logprobs": None if piece is None or piece.logprobs is None else {"content": piece.logprobs},
            "finish_reason": piece.finish if piece is not None else None,
        }
        if self._return_token_ids and piece is not None:
            choice["token_ids"] = piece.token_ids
        value = {**self._base, "choices": [choice], **extra}
        if self._continuous_usage:
            value["usage"] = usage.to_json_value()
        elif self._include_usage:
            value["usage"] = None
        return _event(value)

    def _move(self, source: _State, target: _State) -> None:
        assert self._state is source, f"stream event out of order: {target} after {self._state}"
        self._state = target


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
