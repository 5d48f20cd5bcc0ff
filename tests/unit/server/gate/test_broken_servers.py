"""Servers that are wrong in one way each, on real sockets: the gate must name every one and pass only the right one.

The faults are the kinds users of the peers reported; the reference stands beside each.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pratique_contract.constants import PROBE_HEADER, REQUEST_ID_HEADER
from pratique_contract.reasons import Reason
from pratique_contract.verdict import Verdict, VerdictResult
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.stream import StreamChecker
from tests.support.gates import Chunk, Script, ScriptedServer, ServedPort, make_gate, serving, sse
from tests.support.releases import make_record

RECORD = make_record()
FINGERPRINT = RECORD.fingerprint
SCRIPT = Script(FINGERPRINT)
Events = list[Any]


@pytest.fixture(scope="module", autouse=True)
def port() -> Iterator[None]:
    """One real socket for all faults: starting a server for each would be most of the time."""
    with serving() as served:
        _PORT.append(served)
        yield
        _PORT.clear()


_PORT: list[ServedPort] = []


async def _verdict(server: ScriptedServer, **options: Any) -> Verdict:
    (served,) = _PORT
    served.app = server
    return await make_gate(served.url, record=RECORD, **options).run()


def _server(events: Events, **fields: Any) -> ScriptedServer:
    return ScriptedServer(**{"pieces": sse(*events), "fingerprint": FINGERPRINT, **fields})


@pytest.mark.req("R126")
async def test_the_right_answer_passes_and_says_what_was_proved() -> None:
    server = _server(SCRIPT.good())
    verdict = await _verdict(server)
    assert (verdict.result, verdict.reason, verdict.approved) == (VerdictResult.PASS, Reason.VERIFIED, True)
    names = [check.name for check in verdict.checks]
    cases = [f"golden:{case.name}" for case in RECORD.golden.cases]
    assert names == ["record", "manifest", "rendering", "engine", *cases, "compared", "company", "blocks"]
    assert all(check.result is VerdictResult.PASS for check in verdict.checks)
    assert verdict.fingerprint == FINGERPRINT


async def test_the_request_leaves_nothing_to_defaults_and_carries_the_probe_token() -> None:
    server = _server(SCRIPT.good())
    await _verdict(server)
    request, headers = server.requests[0], server.headers[0]
    assert request["messages"] == [{"role": "user", "content": "Ahoy"}]
    assert (request["temperature"], request["max_tokens"], request["stream"]) == (0, 8, True)
    assert request["stream_options"] == {"include_usage": True}
    assert headers[PROBE_HEADER] == "probe-token"
    assert headers[REQUEST_ID_HEADER].startswith("gate-")


def _without(events: Events, index: int) -> Events:
    return [event for position, event in enumerate(events) if position != index]


def _swapped(events: Events, first: int, second: int) -> Events:
    copy = list(events)
    copy[first], copy[second] = copy[second], copy[first]
    return copy


def _changed(chunk: Chunk, **fields: Any) -> Chunk:
    return {**chunk, **fields}


def _with_choice(chunk: Chunk, **fields: Any) -> Chunk:
    return _changed(chunk, choices=[{**chunk["choices"][0], **fields}])


ROLE, A, B, FINISH, USAGE, DONE = SCRIPT.good()

BROKEN_STREAMS: dict[str, tuple[Events, str]] = {
    "finish missing (vllm#27572)": ([ROLE, A, B, USAGE, DONE], "usage comes after content"),
    "finish_reason null (vllm PR#19662)": ([ROLE, A, B, SCRIPT.content("", (2, -0.3)), USAGE, DONE], "content chunk"),
    "two finishes (vllm#2266)": ([ROLE, A, B, FINISH, FINISH, USAGE, DONE], "finish comes after finish"),
    "content after finish": ([ROLE, A, FINISH, B, USAGE, DONE], "content comes after finish"),
    "finish carries content (vllm#35705)": (
        [ROLE, A, SCRIPT.finish("stop", (11, -0.2), (2, -0.3), delta={"content": "b"}), USAGE, DONE],
        "delta is not empty",
    ),
    "role missing": ([A, B, FINISH, USAGE, DONE], "content comes after start"),
    "role twice": ([ROLE, ROLE, A, B, FINISH, USAGE, DONE], "role comes after role"),
    "role with content": (
        [
            _changed(
                ROLE,
                choices=[{"index": 0, "delta": {"role": "assistant", "content": "a"}, "finish_reason": None}],
            ),
            B,
            FINISH,
            USAGE,
            DONE,
        ],
        "not the assistant's role alone",
    ),
    "usage missing (llama-cpp-python#1498)": ([ROLE, A, B, FINISH, DONE], r"done comes after finish"),
    "usage null (vllm#8625)": ([ROLE, A, B, FINISH, _changed(USAGE, usage=None), DONE], "usage does not hold counts"),
    "usage wrong by one (lmstudio#2335)": (
        [ROLE, A, B, FINISH, SCRIPT.usage(completion=2), DONE],
        r"usage\.completion_tokens says 2, counted are 3",
    ),
    "prompt usage wrong by one": (
        [ROLE, A, B, FINISH, SCRIPT.usage(prompt=3), DONE],
        r"usage\.prompt_tokens says 3, counted are 2",
    ),
    "usage that does not add up": (
        [ROLE, A, B, FINISH, _changed(USAGE, usage={**USAGE["usage"], "total_tokens": 99}), DONE],
        "add up",
    ),
    "usage before finish": (_swapped(SCRIPT.good(), 3, 4), "usage comes after content"),
    "no [DONE] (vllm-metal#199)": ([ROLE, A, B, FINISH, USAGE], "body ended after usage"),
    "data after [DONE]": ([*SCRIPT.good(), USAGE], r"an event follows \[DONE\]"),
    "[DONE] twice": ([*SCRIPT.good(), DONE], r"an event follows \[DONE\]"),
    "nothing at all": ([], "body ended after start"),
    "finish reason of its own": ([ROLE, A, B, SCRIPT.finish("eos", (2, -0.3)), USAGE, DONE], "finish_reason is 'eos'"),
    "reordered content with ordered ids": (
        [ROLE, SCRIPT.content("b", (10, -0.1)), SCRIPT.content("a", (11, -0.2)), FINISH, USAGE, DONE],
        "content chunk 1 is not the text of its ids",
    ),
    "text ahead of its ids": (
        [ROLE, SCRIPT.content("ab", (10, -0.1)), SCRIPT.content("b", (11, -0.2)), FINISH, USAGE, DONE],
        "content chunk 1 is not the text of its ids",
    ),
    "text lost at the end (vllm PR#34887)": (
        [ROLE, A, SCRIPT.finish("stop", (11, -0.2), (2, -0.3)), USAGE, DONE],
        "not the whole text",
    ),
    "U+FFFD (exo#1691)": ([ROLE, SCRIPT.content("\ufffd", (10, -0.1)), B, FINISH, USAGE, DONE], r"U\+FFFD"),
    "a token without logprob": (
        [ROLE, A, _changed(B, choices=[{**B["choices"][0], "logprobs": None}]), FINISH, USAGE, DONE],
        "logprobs says 2, counted are 3",
    ),
    "second choice (sglang PR#8417)": (
        [ROLE, _changed(A, choices=[{**A["choices"][0], "index": 1}]), B, FINISH, USAGE, DONE],
        "index is not 0",
    ),
    "id changes in mid-stream": ([ROLE, _changed(A, id="chatcmpl-2"), B, FINISH, USAGE, DONE], "id is 'chatcmpl-2'"),
    "system_fingerprint missing": (
        [_changed(event, system_fingerprint=None) if isinstance(event, dict) else event for event in SCRIPT.good()],
        "system_fingerprint is None",
    ),
    "system_fingerprint of another release": (
        [
            _changed(event, system_fingerprint="sha256:x") if isinstance(event, dict) else event
            for event in SCRIPT.good()
        ],
        "system_fingerprint is sha256:x",
    ),
    "another model's answer": (
        [_changed(event, model="other") if isinstance(event, dict) else event for event in SCRIPT.good()],
        "model is other",
    ),
    "error event": ([ROLE, A, {"error": {"code": "internal", "message": "boom"}}, DONE], "error internal: boom"),
    "not JSON": ([ROLE, "{", B, FINISH, USAGE, DONE], "not a JSON object"),
    "log-probabilities that are no list": (
        [ROLE, _with_choice(A, logprobs={"content": 5}), B, FINISH, USAGE, DONE],
        "holds no numbers",
    ),
    "a log-probability beyond any number": (
        [ROLE, _with_choice(A, logprobs={"content": [{"logprob": 10**400}]}), B, FINISH, USAGE, DONE],
        "holds no numbers",
    ),
    "an id below zero": ([ROLE, _with_choice(A, token_ids=[-1]), B, FINISH, USAGE, DONE], "not a list of ids"),
    "an id beyond any vocabulary": (
        [ROLE, _with_choice(A, token_ids=[2**32]), B, FINISH, USAGE, DONE],
        "not a list of ids",
    ),
    "prompt ids withheld": (
        [_changed(ROLE, prompt_token_ids=None), A, B, FINISH, USAGE, DONE],
        "not a list of ids",
    ),
}


@pytest.mark.req("R126")
@pytest.mark.parametrize("fault", BROKEN_STREAMS)
async def test_a_broken_stream_is_named(fault: str) -> None:
    events, sentence = BROKEN_STREAMS[fault]
    verdict = await _verdict(_server(events))
    assert verdict.result is VerdictResult.FAIL
    assert verdict.reason is Reason.STREAM_BROKEN
    _match(verdict.message, sentence)


def _match(text: str, pattern: str) -> None:
    assert re.search(pattern, text), f"{pattern!r} not in {text!r}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _put(value[path[0]], path[1:], new)
    return copy


@given(st.data())
def test_whatever_stands_in_an_event_is_read_or_refused_by_name(data: st.DataObject) -> None:
    """What a server may get wrong is the server's; a gate that breaks over it would say so of itself."""
    events = SCRIPT.good()
    path = data.draw(st.sampled_from([place for place in _places(events[:-1]) if place]))
    events = _put(events, path, data.draw(JSON))
    checker = StreamChecker()
    try:
        for event in events:
            checker.feed(event if event == DONE else json.dumps(event))
        checker.finish()
    except CheckFailedError:
        return


BROKEN_BYTES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "event field": (lambda body: b"event: chunk\n" + body, "neither data nor a comment"),
    "carriage returns": (lambda body: body.replace(b"\n", b"\r\n"), "neither data nor a comment"),
    "no empty line at the end": (lambda body: body[:-1], "ended inside an event"),
    "half a line": (lambda body: body + b"data: {", "ended inside an event"),
    "two data lines in one event": (lambda body: body.replace(b"\n\ndata", b"\ndata", 1), "two data lines"),
    "bytes that are not UTF-8": (lambda body: body.replace(b'"a"', b'"\xf0\x9f"', 1), "not UTF-8"),
}


@pytest.mark.parametrize("fault", BROKEN_BYTES)
async def test_malformed_bytes_are_a_broken_stream(fault: str) -> None:
    """unsloth PR#6835: framing that a lenient client repairs and a strict one drops."""
    spoil, sentence = BROKEN_BYTES[fault]
    verdict = await _verdict(_server([], pieces=[spoil(b"".join(sse(*SCRIPT.good())))]))
    assert verdict.reason is Reason.STREAM_BROKEN
    _match(verdict.message, sentence)


async def test_keep_alive_comments_and_any_splitting_of_bytes_are_fine() -> None:
    body = b": keep-alive\n\n" + b"".join(sse(*SCRIPT.good()))
    verdict = await _verdict(_server([], pieces=[body[index : index + 1] for index in range(len(body))]))
    assert verdict.passed, verdict.message


async def test_a_hanging_stream_times_out_with_the_check_named() -> None:
    """vllm-metal#199."""
    verdict = await _verdict(_server([ROLE, A], hang_seconds=30.0), timeout_seconds=0.3)
    assert verdict.reason is Reason.PROBE_TIMEOUT
    assert "golden:greeting" in verdict.message
    results = {check.name: check.result for check in verdict.checks}
    assert results["golden:greeting"] is VerdictResult.FAIL
    assert results["blocks"] is VerdictResult.PENDING


async def test_a_connection_that_stays_open_after_done_times_out() -> None:
    """mistral.rs#1874."""
    verdict = await _verdict(_server(SCRIPT.good(), hang_seconds=30.0), timeout_seconds=0.3)
    assert verdict.reason is Reason.PROBE_TIMEOUT


async def test_a_cut_connection_is_a_broken_stream() -> None:
    verdict = await _verdict(_server([ROLE, A, B], cut=True))
    assert verdict.reason is Reason.STREAM_BROKEN
    _match(verdict.message, "connection broke")


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_an_http_error_is_a_broken_stream(status: int) -> None:
    body = [json.dumps({"error": {"code": "internal", "message": "boom"}}).encode()]
    verdict = await _verdict(_server([], pieces=body, status=status, content_type="application/json"))
    assert verdict.reason is Reason.STREAM_BROKEN
    _match(verdict.message, f"HTTP {status}.*internal: boom")


async def test_an_error_body_that_cannot_be_read_is_the_servers() -> None:
    deep = _server([], pieces=[b"[" * 4000], status=500, content_type="application/json")
    packed = _server([], pieces=[b"no gzip"], status=500, encoding="gzip")
    for server in (deep, packed):
        assert (await _verdict(server)).reason is Reason.STREAM_BROKEN


async def test_an_answer_that_is_no_event_stream_is_broken() -> None:
    verdict = await _verdict(_server(SCRIPT.good(), content_type="application/json"))
    assert verdict.reason is Reason.STREAM_BROKEN


async def test_a_wrong_fingerprint_header_is_noticed() -> None:
    verdict = await _verdict(_server(SCRIPT.good(), fingerprint="sha256:" + "0" * 64))
    assert verdict.reason is Reason.STREAM_BROKEN
    _match(verdict.message, "header x-pratique-fingerprint")


async def test_an_engine_that_is_gone_is_named_as_such() -> None:
    error = {"error": {"code": "engine_unavailable", "message": "The engine died"}}
    in_stream = await _verdict(_server([ROLE, A, error, DONE]))
    at_once = await _verdict(_server([], refusals=[(503, "engine_unavailable")]))
    assert (in_stream.reason, at_once.reason) == (Reason.ENGINE_UNREACHABLE, Reason.ENGINE_UNREACHABLE)


async def test_saturation_never_fails_the_probe() -> None:
    """kserve#6259's reverse: busy is not wrong. Waiting for a turn does not use up the budget."""
    server = _server(SCRIPT.good(), refusals=[(429, "queue_full")] * 8)
    # Waiting takes 1.6 s; the budget has room for the three cases on a busy machine.
    verdict = await _verdict(server, timeout_seconds=1.5)
    assert verdict.passed, verdict.message
    assert (
        len({headers[REQUEST_ID_HEADER] for headers in server.headers}) == 8 + 2 * len(RECORD.golden.cases) + 2
    )  # alone, in company, the neighbour


async def test_a_port_that_never_listens_times_out_and_says_so() -> None:
    verdict = await make_gate("http://127.0.0.1:9", record=RECORD, timeout_seconds=0.5).run()
    assert verdict.reason is Reason.PROBE_TIMEOUT
    _match(verdict.message, "no connection to")
