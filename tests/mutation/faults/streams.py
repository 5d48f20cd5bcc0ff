"""Right answers sent wrongly: the order of events, their fields, the counts, the text of the ids, the bytes on the wire.

Generated from the five kinds of event: each one missing, each one twice, each pair of neighbours exchanged, each end too early. The
events come from the real server and are changed on their way to the socket.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final

from pratique_contract.reasons import Reason
from tests.mutation.fault import Arrange, Fault, stream
from tests.support.broken_streams import Events

DONE: Final = b"data: [DONE]\n\n"
Event = dict[str, Any]


# The events of one stream, by kind


def read(event: bytes) -> Event:
    return dict(json.loads(event.removeprefix(b"data: ")))


def write(value: Event) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


class Kinds:
    """Where each kind of event is. An answer has at least two events of content here."""

    def __init__(self, events: Events) -> None:
        self.events = list(events)
        kinds = [_kind(event) for event in events]
        self.role = kinds.index("role")
        self.first = kinds.index("content")
        self.last = len(kinds) - 1 - kinds[::-1].index("content")
        self.finish = kinds.index("finish")
        self.usage = kinds.index("usage")
        self.done = kinds.index("done")

    @cached_property
    def places(self) -> dict[str, int]:
        return {
            "role": self.role,
            "first content": self.first,
            "last content": self.last,
            "finish": self.finish,
            "usage": self.usage,
            "[DONE]": self.done,
        }


def _kind(event: bytes) -> str:
    if event == DONE:
        return "done"
    value = read(event)
    if not value["choices"]:
        return "usage"
    choice = value["choices"][0]
    if choice["finish_reason"]:
        return "finish"
    return "role" if "role" in choice["delta"] else "content"


def _moved(events: Events, source: int, target: int) -> Events:
    moved = events.pop(source)
    events.insert(target, moved)
    return events


def _dropped(kind: str) -> Callable[[Events], Events]:
    def change(events: Events) -> Events:
        place = Kinds(events).places[kind]
        return [event for position, event in enumerate(events) if position != place]

    return change


def _doubled(kind: str) -> Callable[[Events], Events]:
    def change(events: Events) -> Events:
        place = Kinds(events).places[kind]
        return [*events[: place + 1], *events[place:]]

    return change


def _exchanged(first: str, second: str) -> Callable[[Events], Events]:
    def change(events: Events) -> Events:
        places = Kinds(events).places
        one, other = places[first], places[second]
        events[one], events[other] = events[other], events[one]
        return events

    return change


def _early(kind: str, before: str) -> Callable[[Events], Events]:
    def change(events: Events) -> Events:
        places = Kinds(events).places
        return _moved(events, places[kind], places[before])

    return change


def _edited(kind: str, edit: Callable[[Event], object]) -> Callable[[Events], Events]:
    """Change the fields of one event."""

    def change(events: Events) -> Events:
        place = Kinds(events).places[kind]
        value = read(events[place])
        edit(value)
        events[place] = write(value)
        return events

    return change


def _inserted(before: str, make: Callable[[Events], bytes]) -> Callable[[Events], Events]:
    def change(events: Events) -> Events:
        place = Kinds(events).places[before]
        return [*events[:place], make(events), *events[place:]]

    return change


def _choice(edit: Callable[[dict[str, Any]], object]) -> Callable[[Event], object]:
    return lambda value: edit(value["choices"][0])


def _delta(**fields: Any) -> Callable[[Event], object]:
    return _choice(lambda choice: choice["delta"].update(fields))


def _count(**by: int) -> Callable[[Event], object]:
    def edit(value: Event) -> None:
        usage = value["usage"]
        for name, amount in by.items():
            usage[name] += amount

    return edit


def _text(change: Callable[[str], str]) -> Callable[[Event], object]:
    def edit(value: Event) -> None:
        delta = value["choices"][0]["delta"]
        delta["content"] = change(delta["content"])

    return edit


def _logprob(change: Callable[[float], Any]) -> Callable[[Event], object]:
    def edit(value: Event) -> None:
        entry = value["choices"][0]["logprobs"]["content"][0]
        entry["logprob"] = change(entry["logprob"])

    return edit


def _finish_with_content(events: Events) -> Events:
    kinds = Kinds(events)
    last, end = read(events[kinds.last]), read(events[kinds.finish])
    last["choices"][0]["finish_reason"] = end["choices"][0]["finish_reason"]
    return [*events[: kinds.last], write(last), *events[kinds.finish + 1 :]]


def _only_when(reason: str, change: Callable[[Event], object]) -> Callable[[Events], Events]:
    """Change the finish of those answers alone that end in this way."""

    def edit(value: Event) -> None:
        if value["choices"][0]["finish_reason"] == reason:
            change(value)

    return _edited("finish", edit)


def _joined(change: Callable[[bytes], bytes]) -> Callable[[Events], Events]:
    """Change the bytes of the whole body."""
    return lambda events: [change(b"".join(events))]


_ERROR: Final = {"error": {"message": "The server failed", "type": "server_error", "param": None, "code": "internal"}}
_GONE: Final = {
    "error": {"message": "The engine stopped", "type": "server_error", "param": None, "code": "engine_unavailable"}
}


def _generated() -> Iterator[Fault]:
    kinds = ("role", "first content", "last content", "finish", "usage", "[DONE]")
    bugs = {"finish": "vllm#27572", "usage": "llama-cpp-python#1498", "[DONE]": "vllm-metal#199"}
    for kind in kinds:
        yield _broken(f"{kind} missing", _dropped(kind), bug=bugs.get(kind, ""))
    for kind in kinds:
        yield _broken(f"{kind} twice", _doubled(kind), bug="vllm#2266" if kind == "finish" else "")
    for first, second in itertools.pairwise(kinds):
        # Two contents exchanged, each with its ids, are a well-formed stream that says something else.
        reason = (
            Reason.OUTPUT_MISMATCH if {first, second} == {"first content", "last content"} else Reason.STREAM_BROKEN
        )
        yield _broken(f"{first} and {second} exchanged", _exchanged(first, second), reason=reason)
    for kind, before in (("finish", "first content"), ("usage", "first content"), ("usage", "role"), ("[DONE]", "usage"),
                         ("[DONE]", "role"), ("finish", "role")):  # fmt: skip
        yield _broken(f"{kind} before {before}, alone", _early(kind, before))


def _broken(
    name: str, change: Callable[[Events], Events], *, bug: str = "", reason: Reason = Reason.STREAM_BROKEN
) -> Fault:
    return Fault(part="stream", name=name, reason=reason, arrange=stream(change), bug=bug)


_FIELDS: Final = (
    _broken("finish reason null", _edited("finish", _choice(lambda c: c.update(finish_reason=None))), bug="vllm#27572"),
    _broken("finish reason missing", _edited("finish", _choice(lambda c: c.pop("finish_reason"))), bug="vllm PR#19662"),
    _broken("finish reason unknown", _edited("finish", _choice(lambda c: c.update(finish_reason="eos_token")))),
    _broken("stop told as length", _only_when("stop", _choice(lambda c: c.update(finish_reason="length"))),
            reason=Reason.OUTPUT_MISMATCH),
    _broken("length told as stop", _only_when("length", _choice(lambda c: c.update(finish_reason="stop")))),
    _broken("stop told as tool calls", _only_when("stop", _choice(lambda c: c.update(finish_reason="tool_calls"))),
            bug="litellm#12862", reason=Reason.OUTPUT_MISMATCH),
    _broken("the last text in the finish event", _finish_with_content, bug="vllm#35705"),
    _broken("text in the role event", _edited("role", _delta(content="Ahoy"))),
    _broken("prompt text in the first delta", _edited("first content", _text(lambda text: "assistant\n" + text)), bug="vllm#48853"),
    _broken("usage null", _edited("usage", lambda value: value.update(usage=None)), bug="vllm#8625"),
    _broken("completion count one too low", _edited("usage", _count(completion_tokens=-1, total_tokens=-1)), bug="lmstudio#2335"),
    _broken("completion count one too high", _edited("usage", _count(completion_tokens=1, total_tokens=1)), bug="lmstudio#2335"),
    _broken("prompt count one too low", _edited("usage", _count(prompt_tokens=-1, total_tokens=-1))),
    _broken("prompt count one too high", _edited("usage", _count(prompt_tokens=1, total_tokens=1))),
    _broken("total that does not add up", _edited("usage", _count(total_tokens=1))),
    _broken("usage beside the finish", _edited("finish", lambda value: value.update(
        usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}))),
    _broken("another id in one event", _edited("last content", lambda value: value.update(id="chatcmpl-other")), bug="vllm#10583"),
    _broken("another model in one event", _edited("last content", lambda value: value.update(model="other"))),
    _broken("another fingerprint in one event", _edited("finish", lambda value: value.update(system_fingerprint="fp_other"))),
    _broken("another object", _edited("first content", lambda value: value.update(object="chat.completion"))),
    _broken("another index", _edited("first content", _choice(lambda c: c.update(index=1))), bug="lmdeploy#3412"),
    _broken("two choices in one event", _edited("first content", lambda value: value["choices"].append(value["choices"][0])),
            bug="sglang PR#8417"),
    _broken("no delta", _edited("first content", _choice(lambda c: c.pop("delta")))),
    _broken("an empty content event", _inserted("finish", lambda events: _empty_content(events))),
    _broken("one letter of the text", _edited("last content", _text(lambda text: text[:-1] + "X"))),
    _broken("a space after the text", _edited("last content", _text(lambda text: text + " "))),
    _broken("a space before the text", _edited("first content", _text(lambda text: " " + text))),
    _broken("text in capitals", _edited("last content", _text(lambda text: text.swapcase() if text.swapcase() != text else text * 2))),
    _broken("half a character", _edited("last content", _text(lambda text: text + "\ufffd")), bug="llama.cpp#4036"),
    _broken("one event's ids missing", _edited("last content", _choice(lambda c: c.pop("token_ids")))),
    _broken("an id too many", _edited("last content", _choice(lambda c: c["token_ids"].append(7)))),
    _broken("ids as text", _edited("first content", _choice(lambda c: c.update(token_ids=[str(i) for i in c["token_ids"]]))),
            bug="vllm PR#6626"),
    _broken("another id with the same count", _edited("last content", _choice(lambda c: c["token_ids"].__setitem__(0, 300)))),
    _broken("one event's log-probabilities null", _edited("last content", _choice(lambda c: c.update(logprobs=None)))),
    _broken("a log-probability that is text", _edited("last content", _logprob(str))),
    _broken("a log-probability of minus infinity", _edited("last content", _logprob(lambda _: float("-inf"))),
            bug="vllm PR#4149", reason=Reason.OUTPUT_MISMATCH),
    _broken("a log-probability off by a tenth", _edited("last content", _logprob(lambda value: value - 0.1)),
            reason=Reason.OUTPUT_MISMATCH),
    _broken("an error in the middle", _inserted("last content", lambda _: write(_ERROR))),
    _broken("the engine lost in the middle", _inserted("last content", lambda _: write(_GONE)), reason=Reason.ENGINE_UNREACHABLE),
    _broken("an error after a complete answer", _inserted("usage", lambda _: write(_ERROR))),
    _broken("carriage returns", _joined(lambda body: body.replace(b"\n", b"\r\n")), bug="unsloth PR#6835"),
    _broken("no space after data", _joined(lambda body: body.replace(b"data: ", b"data:")), bug="unsloth PR#6835"),
    _broken("events without an empty line", _joined(lambda body: body.replace(b"\n\n", b"\n")), bug="unsloth PR#6835"),
    _broken("named events", _joined(lambda body: body.replace(b"data: ", b"event: chunk\ndata: "))),
    _broken("a body without a last line end", _joined(lambda body: body[:-1])),
    _broken("a body cut in the middle", _joined(lambda body: body[: len(body) // 2])),
    _broken("an empty body", _joined(lambda body: b"")),
    _broken("bytes that are not UTF-8", _joined(lambda body: body.replace(b'"content": "', b'"content": "\xff', 1).replace(
        b'"content":"', b'"content":"\xff', 1)), bug="vllm-mlx PR#109"),
    _broken("something after the end", _joined(lambda body: body + b"data: {}\n\n")),
    _broken("a proxy's page in the middle", _joined(lambda body: body.replace(b"data: ", b"<html>", 1))),
)  # fmt: skip


def _empty_content(events: Events) -> bytes:
    value = read(events[Kinds(events).last])
    value["choices"][0] |= {"delta": {"content": ""}, "token_ids": [], "logprobs": None}
    return write(value)


# The answer's head


def _start(change: Callable[[Any], Any]) -> Arrange:
    return lambda scene: scene.break_streams(lambda events: events, start=change)


def _header(name: bytes, value: bytes | None) -> Callable[[Any], Any]:
    def change(message: Any) -> Any:
        kept = [(key, old) for key, old in message["headers"] if key.lower() != name]
        return {**message, "headers": kept if value is None else [*kept, (name, value)]}

    return change


_STALE: Final = b"sha256:" + b"a" * 64

_HEADS: Final = tuple(
    Fault(part="stream", name=name, reason=Reason.STREAM_BROKEN, arrange=arrange, bug=bug)
    for name, arrange, bug in (
        ("a fingerprint in the header that is another's", _start(_header(b"x-pratique-fingerprint", _STALE)), "LLMKube#1767"),
        ("no fingerprint in the header", _start(_header(b"x-pratique-fingerprint", None)), ""),
        ("a body that claims to be compressed", _start(_header(b"content-encoding", b"gzip")), ""),
        ("status 500 with a right body", _start(lambda message: {**message, "status": 500}), ""),
        ("an answer as JSON", _start(_header(b"content-type", b"application/json")), ""),
    )
)  # fmt: skip


FAULTS: Final = (*_generated(), *_FIELDS, *_HEADS)
