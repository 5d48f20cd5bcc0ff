"""Read a probe's stream as a state machine: role → content → finish → usage → [DONE], and nothing after.

In go the payloads of the events, out comes what they said. Every departure from the order is ``StreamBroken`` with the event's
number. Asked for with ``return_token_ids``, the prompt comes in the role chunk's ``prompt_token_ids`` (and ``prompt_text``, where the
server tells it) and the output's ids in
``choices[0].token_ids``; an id may arrive before its text (a character's bytes may be incomplete) but text never before its ids.
"""

import json
import sys
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from pratique_contract.golden import Usage
from pratique_contract.reasons import Reason
from pratique_contract.verdict import Evidence
from pratique_server.gate.errors import CheckFailedError

DONE: Final = "[DONE]"
CHUNK_OBJECT: Final = "chat.completion.chunk"
REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
FINISH_REASONS: Final = ("stop", "length", "tool_calls", "content_filter")
# Error codes of a stream's error event that mean the engine, not the stream, is at fault.
ENGINE_ERROR_CODES: Final = ("engine_unavailable",)
# Fields that must be the same in every chunk of one answer.
CONSTANT_FIELDS: Final = ("id", "created", "model", "system_fingerprint")
PAYLOAD_SHOWN_MAX: Final = 300
# What a tokenizer can be asked for at all.
ID_MAX: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class ContentPiece:
    """One content chunk: its text, and how many ids had arrived with or before it."""

    text: str
    ids_seen: int


@dataclass(frozen=True, kw_only=True)
class StreamReport:
    """What a complete, well-ordered stream said."""

    text: str
    pieces: tuple[ContentPiece, ...]
    ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    usage: Usage
    events: tuple[str, ...]
    system_fingerprint: str | None
    model: str
    prompt_text: str | None = None


@dataclass
class StreamChecker:
    """Feed every payload in order, then call ``finish``. ``state`` is the kind of the last event."""

    state: str = "start"
    _count: int = 0
    _events: list[str] = field(default_factory=list)
    _constants: dict[str, Any] = field(default_factory=dict)
    _pieces: list[ContentPiece] = field(default_factory=list)
    _ids: list[int] = field(default_factory=list)
    _prompt_ids: tuple[int, ...] = ()
    _prompt_text: str | None = None
    _logprobs: list[float] = field(default_factory=list)
    _finish_reason: str | None = None
    _usage: Usage | None = None
    _payload: str = ""

    def feed(self, payload: str) -> None:
        """Take one event; raises ``CheckFailedError`` when it may not come here."""
        self._count += 1
        self._payload = payload
        if self.state == "done":
            self._broken("an event follows [DONE]", expected="the end of the body")
        if payload == DONE:
            self._enter("done", after=("usage",))
            return
        chunk = self._read_object(payload)
        if "error" in chunk:
            self._raise_error_event(chunk["error"])
        self._check_constants(chunk)
        choices = chunk.get("choices")
        if not isinstance(choices, list) or len(choices) > 1:
            self._broken("choices is not a list of at most one choice", expected="one choice")
        if not choices:
            self._read_usage(chunk)
            return
        if chunk.get("usage") is not None:
            self._broken("usage comes in a chunk that has a choice", expected="usage in a chunk of its own")
        self._read_choice(choices[0], chunk)

    def finish(self) -> StreamReport:
        """The report; raises ``CheckFailedError`` when the body ended too early."""
        if self.state != "done" or self._finish_reason is None or self._usage is None:
            order = "role, content, finish, usage, [DONE]"
            self._broken(f"the body ended after {self.state}; whole is {order}", expected=order)
        fingerprint = self._constants["system_fingerprint"]
        return StreamReport(
            text="".join(piece.text for piece in self._pieces),
            pieces=tuple(self._pieces),
            ids=tuple(self._ids),
            prompt_ids=self._prompt_ids,
            logprobs=tuple(self._logprobs),
            finish_reason=self._finish_reason,
            usage=self._usage,
            events=tuple(self._events),
            system_fingerprint=fingerprint if isinstance(fingerprint, str) else None,
            model=str(self._constants["model"]),
            prompt_text=self._prompt_text,
        )

    def _read_choice(self, choice: Any, chunk: dict[str, Any]) -> None:
        if not isinstance(choice, dict) or choice.get("index") != 0:
            self._broken("the choice's index is not 0", expected="index 0")
        delta, reason = choice.get("delta"), choice.get("finish_reason")
        if not isinstance(delta, dict):
            self._broken("a choice has no delta", expected="delta: {…}")
        # A field sent as null says nothing: clients treat it as absent.
        said = {name: value for name, value in delta.items() if value is not None}
        if reason is not None:
            self._read_finish(choice, said, reason)
        elif "role" in said:
            self._read_role(choice, said)
            self._read_prompt(chunk)
        else:
            self._read_content(choice, said)

    def _read_role(self, choice: dict[str, Any], delta: dict[str, Any]) -> None:
        self._enter("role", after=("start",))
        if delta != {"role": "assistant", "content": ""}:
            self._broken("the first delta is not the assistant's role alone", expected="role assistant, content empty")
        if choice.get("token_ids"):
            self._broken("the role chunk carries tokens", expected="no token_ids before content")

    def _read_prompt(self, chunk: dict[str, Any]) -> None:
        self._prompt_ids = self._read_ids(chunk.get("prompt_token_ids"))
        text = chunk.get("prompt_text")
        if text is not None and not isinstance(text, str):
            self._broken("prompt_text is not text", expected="the rendered prompt")
        self._prompt_text = text

    def _read_content(self, choice: dict[str, Any], delta: dict[str, Any]) -> None:
        self._enter("content", after=("role", "content"))
        text = delta.get("content")
        if set(delta) != {"content"} or not isinstance(text, str) or not text:
            self._broken("a content chunk has no text, or more than text", expected="delta: {content: text}")
        self._read_tokens(choice)
        self._pieces.append(ContentPiece(text=text, ids_seen=len(self._ids)))

    def _read_finish(self, choice: dict[str, Any], delta: dict[str, Any], reason: Any) -> None:
        self._enter("finish", after=("role", "content"))
        if delta:
            self._broken("the finish chunk's delta is not empty", expected="delta: {}")
        if reason not in FINISH_REASONS:
            self._broken(f"finish_reason is {reason!r}", expected=" | ".join(FINISH_REASONS))
        self._read_tokens(choice)
        self._finish_reason = str(reason)

    def _read_usage(self, chunk: dict[str, Any]) -> None:
        self._enter("usage", after=("finish",))
        usage = chunk.get("usage")
        fields = ("prompt_tokens", "completion_tokens", "total_tokens")
        counts = [usage.get(name) if isinstance(usage, dict) else None for name in fields]
        whole = [count for count in counts if type(count) is int and count >= 0]
        if len(whole) != len(fields) or whole[0] + whole[1] != whole[2]:
            self._broken("usage does not hold counts that add up", expected="prompt + completion = total")
        self._usage = Usage(prompt_tokens=whole[0], completion_tokens=whole[1])

    def _read_tokens(self, choice: dict[str, Any]) -> None:
        if choice.get("token_ids") is not None:
            self._ids += self._read_ids(choice["token_ids"])
        logprobs = choice.get("logprobs")
        if logprobs is None:
            return
        entries = logprobs.get("content") if isinstance(logprobs, dict) else None
        for entry in [] if entries is None else entries if isinstance(entries, list) else [None]:
            value = entry.get("logprob") if isinstance(entry, dict) else None
            if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
                value = float(value)
            if not isinstance(value, float):
                self._broken("logprobs.content holds no numbers", expected="one logprob per token")
            self._logprobs.append(value)

    def _read_ids(self, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(type(token) is int and 0 <= token <= ID_MAX for token in value):
            self._broken("token ids are not a list of ids", expected="[id, …]")
        return tuple(value)

    def _read_object(self, payload: str) -> dict[str, Any]:
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self._broken("an event is not a JSON object", expected="data: {…}")
        return value

    def _check_constants(self, chunk: dict[str, Any]) -> None:
        if chunk.get("object") != CHUNK_OBJECT:
            self._broken(f"object is {chunk.get('object')!r}", expected=CHUNK_OBJECT)
        found = {name: chunk.get(name) for name in CONSTANT_FIELDS}
        self._constants = self._constants or found
        for name, value in found.items():
            if value is None or value != self._constants[name]:
                self._broken(f"{name} is {value!r}", expected=f"{self._constants[name]!r} in every chunk")

    def _enter(self, kind: str, *, after: tuple[str, ...]) -> None:
        if self.state not in after:
            order = f"after {' or '.join(after)}"
            self._broken(f"{kind} comes after {self.state}, not {order}", expected=f"{kind} {order}")
        if self.state != kind:
            self._events.append(kind)
        self.state = kind

    def _raise_error_event(self, error: Any) -> NoReturn:
        code = error.get("code") if isinstance(error, dict) else None
        message = error.get("message") if isinstance(error, dict) else error
        reason = Reason.ENGINE_UNREACHABLE if code in ENGINE_ERROR_CODES else Reason.STREAM_BROKEN
        raise CheckFailedError(
            reason, f"The stream ended in error {code}: {message}", evidence=(self._evidence("tokens"),)
        )

    def _broken(self, what: str, *, expected: str) -> NoReturn:
        raise CheckFailedError(
            Reason.STREAM_BROKEN,
            f"Event {self._count}: {what}",
            expected=expected,
            observed=what,
            evidence=(self._evidence(expected),),
        )

    def _evidence(self, expected: str) -> Evidence:
        shown = self._payload if len(self._payload) <= PAYLOAD_SHOWN_MAX else f"{self._payload[:PAYLOAD_SHOWN_MAX]}…"
        return Evidence(subject=f"event {self._count}", expected=expected, observed=shown)
