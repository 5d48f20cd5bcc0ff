"""Engine events to what a client sees: ids become certain text, stop strings end the answer, tokens are counted.

Invariants: text given out is never taken back; ``len(token_ids)`` over all pieces equals the completion tokens of the usage; after
a piece with ``finish`` nothing comes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pratique_server.engine.protocol import FinishReason, StepEvent, TokenLogprobs
from pratique_server.text import Detokenizer, StopStrings, Tokenizer

# JSON has no infinity; this is what the reference API sends for a probability of zero.
LOGPROB_MIN: Final = -9999.0


@dataclass(frozen=True, kw_only=True)
class UsageCounts:
    """Tokens as the client is told; never summed twice: ``completion`` is the count so far, not an increment."""

    prompt: int
    completion: int
    cached: int

    def to_json_value(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(kw_only=True)
class Piece:
    """New text with the tokens since the last piece. ``logprobs`` is None unless asked for."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] | None = None
    finish: str | None = None


class Answer:
    """One output sequence. ``push`` each engine event; stop when a piece has ``finish`` and cancel the rest of the engine's work."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt_tokens: int,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        logprobs: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stop)
        self._prompt_tokens = prompt_tokens
        self._min_tokens = min_tokens
        self._logprobs = logprobs
        self._completion_tokens = 0
        self._cached_tokens = 0
        self.finish_reason: str | None = None

    @property
    def usage(self) -> UsageCounts:
        return UsageCounts(prompt=self._prompt_tokens, completion=self._completion_tokens, cached=self._cached_tokens)

    def push(self, event: StepEvent) -> Piece:
        assert self.finish_reason is None, "an engine event came after the answer's end"
        self._cached_tokens = max(self._cached_tokens, event.cached_tokens)
        piece = Piece(logprobs=[] if self._logprobs else None)
        # The engine includes the token it stopped at; it is counted and never shown.
        hidden = len(event.token_ids) - 1 if event.finish is FinishReason.STOP else None
        for index, token_id in enumerate(event.token_ids):
            self._take(piece, token_id, event.logprobs[index] if event.logprobs else None)
            if index != hidden:
                piece.text += self._visible(self._detokenizer.push([token_id]))
            if self._stops.matched is not None:
                return self._finished(piece, "stop")
        if event.finish is not None:
            piece.text += self._visible(self._detokenizer.finish())
            stopped = event.finish is FinishReason.STOP or self._stops.matched is not None
            piece.text += self._stops.finish()
            return self._finished(piece, "stop" if stopped else "length")
        return piece

    def _visible(self, text: str) -> str:
        if self._completion_tokens <= self._min_tokens:
            return text
        return self._stops.push(text)

    def _take(self, piece: Piece, token_id: int, logprobs: TokenLogprobs | None) -> None:
        self._completion_tokens += 1
        piece.token_ids.append(token_id)
        if piece.logprobs is not None and logprobs is not None:
            entry = self._logprob(token_id, logprobs.chosen)
            entry["top_logprobs"] = [self._logprob(other, value) for other, value in logprobs.top]
            piece.logprobs.append(entry)

    def _logprob(self, token_id: int, value: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token_id)
        return {
            "token": raw.decode("utf-8", "replace"),
            "logprob": max(value, LOGPROB_MIN) if value == value else LOGPROB_MIN,
            "bytes": list(raw),
        }

    def _finished(self, piece: Piece, reason: str) -> Piece:
        self.finish_reason = piece.finish = reason
        return piece


class PieceMerger:
    """Holds back pieces without text until one with text comes, so that no chunk is sent for a fragment of a character; the
    finish comes alone, with what showed no text."""

    def __init__(self) -> None:
        self._held = Piece()

    def add(self, piece: Piece) -> list[Piece]:
        """The pieces to send now: at most one with text, then at most one with the finish."""
        held = self._held
        held.text += piece.text
        held.token_ids += piece.token_ids
        if piece.logprobs is not None:
            held.logprobs = (held.logprobs or []) + piece.logprobs
        if piece.finish is None:
            if not held.text:
                return []
            self._held = Piece()
            return [held]
        return _split_finish(held, piece.finish)


def _split_finish(held: Piece, finish: str) -> list[Piece]:
    """All tokens go with the text, except when there is none."""
    if not held.text:
        held.finish = finish
        return [held]
    return [held, Piece(finish=finish, logprobs=[] if held.logprobs is not None else None)]
