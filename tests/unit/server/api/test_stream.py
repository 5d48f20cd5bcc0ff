"""A stream's order and its end, whatever ends it: finish, stop string, limit, error, deadline, disconnect, slow reader."""

import asyncio
import json
import threading
from typing import Any

import pytest

from pratique_server.config import ApiLimits
from pratique_server.engine.protocol import (
    DeadlineExceededError,
    EngineDeadError,
    EngineOverloadedError,
    FinishReason,
    RequestAbortedError,
    RequestTooLargeError,
    StepEvent,
)
from tests.unit.server.scripted import (
    EOS,
    FINGERPRINT,
    Api,
    RawExchange,
    ScriptedEngine,
    Step,
    byte_tokenizer,
    chat_body,
    events_of,
    eventually,
    make_api,
)

STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def chunks_of(body: bytes) -> list[Any]:
    """The data events of a stream; ``[DONE]`` as it stands. Anything else in the body is an error."""
    assert body.endswith(b"\n\n")
    values: list[Any] = []
    for event in body.decode().removesuffix("\n\n").split("\n\n"):
        if event.startswith(":"):
            continue
        assert event.startswith("data: "), event
        data = event.removeprefix("data: ")
        values.append(data if data == "[DONE]" else json.loads(data))
    return values


def kind_of(chunk: Any) -> str:
    if chunk == "[DONE]":
        return "done"
    if "error" in chunk:
        return "error"
    if not chunk["choices"]:
        return "usage"
    choice = chunk["choices"][0]
    if choice["finish_reason"] is not None:
        return "finish"
    return "role" if "role" in choice["delta"] else "content"


def order_of(chunks: list[Any]) -> list[str]:
    """Kinds of events with runs of content as one."""
    kinds = [kind_of(chunk) for chunk in chunks]
    return [kind for index, kind in enumerate(kinds) if kind != "content" or kinds[index - 1] != "content"]


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if kind_of(chunk) == "content")


async def stream(api: Api, **changes: Any) -> list[Any]:
    response = await api.chat({**STREAM, **changes})
    assert response.status_code == 200, response.text
    return chunks_of(response.content)


def assert_clean(api: Api) -> None:
    assert api.engine.live == set()
    assert len(api.state.live) == 0


@pytest.mark.req("R78", "R80")
async def test_events_come_in_order_with_one_empty_finish_and_usage() -> None:
    """vllm#27572, vllm#2266, vllm#35705, vllm#8625: finish null, twice, with content; usage missing."""
    api = make_api(events_of("Hello, harbour."))
    chunks = await stream(api)
    assert order_of(chunks) == ["role", "content", "finish", "usage", "done"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    finish = chunks[-3]["choices"][0]
    assert (finish["delta"], finish["finish_reason"]) == ({}, "stop")
    assert text_of(chunks) == "Hello, harbour."
    usage = chunks[-2]["usage"]
    assert usage["completion_tokens"] == len("Hello, harbour.") + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert_clean(api)


async def test_every_chunk_carries_the_same_identity() -> None:
    chunks = await stream(make_api())
    constant = {
        (chunk["id"], chunk["created"], chunk["model"], chunk["system_fingerprint"], chunk["object"])
        for chunk in chunks[:-1]
    }
    assert len(constant) == 1
    assert chunks[0]["system_fingerprint"] == FINGERPRINT


async def test_usage_is_sent_only_when_asked_for_and_running_counts_when_asked() -> None:
    """vllm-omni PR#2313: running counts were added up."""
    api = make_api(events_of("abc"))
    plain = chunks_of((await api.chat({"stream": True})).content)
    assert order_of(plain) == ["role", "content", "finish", "done"]
    assert not any("usage" in chunk for chunk in plain[:-1])
    running = await stream(api, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert [chunk["usage"]["completion_tokens"] for chunk in running[:-1]] == [1, 1, 2, 3, 4, 4]


@pytest.mark.parametrize("per_event", [1, 3, 100])
@pytest.mark.req("R78")
async def test_stream_and_body_say_the_same(per_event: int) -> None:
    api = make_api(events_of("The pilot 🚢 boards.", per_event=per_event))
    chunks = await stream(api)
    whole = (await api.chat()).json()
    assert text_of(chunks) == whole["choices"][0]["message"]["content"] == "The pilot 🚢 boards."
    assert chunks[-3]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "stop"
    assert chunks[-2]["usage"] == whole["usage"]


@pytest.mark.parametrize("text", ["🚢⚓", "👩‍👩‍👧‍👦", "船が港に入る", "é", "a🚢b", "\N{ZERO WIDTH JOINER}"])
@pytest.mark.req("R74")
async def test_characters_split_over_tokens_arrive_whole(text: str) -> None:
    """llama.cpp#4036, mlx-vlm PR#1076, exo#1691."""
    chunks = await stream(make_api(events_of(text)))
    pieces = [chunk["choices"][0]["delta"]["content"] for chunk in chunks if kind_of(chunk) == "content"]
    assert "".join(pieces) == text
    assert all(piece and "\ufffd" not in piece for piece in pieces)


async def test_a_limit_in_the_middle_of_a_character_ends_with_length() -> None:
    ids = byte_tokenizer().encode("ok 🚢")[:-2]
    events = [StepEvent(request_id="", token_ids=[token]) for token in ids[:-1]]
    events.append(StepEvent(request_id="", token_ids=[ids[-1]], finish=FinishReason.LENGTH))
    chunks = await stream(make_api(events))
    assert text_of(chunks) == "ok "
    assert chunks[-3]["choices"][0]["finish_reason"] == "length"
    assert chunks[-2]["usage"]["completion_tokens"] == len(ids)


async def test_an_answer_without_text_still_has_role_and_finish() -> None:
    chunks = await stream(make_api([StepEvent(request_id="", token_ids=[EOS], finish=FinishReason.STOP)]))
    assert order_of(chunks) == ["role", "finish", "usage", "done"]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.req("R72", "R92")
async def test_a_stop_string_ends_the_answer_and_the_engines_work(streamed: bool) -> None:
    """vllm#3574, vllm PR#3672, vllm#5543."""
    never = asyncio.Event()
    script: list[Step] = [*events_of("one STOP two three"), never]
    script[-2] = StepEvent(request_id="", token_ids=[65])
    api = make_api(script)
    body: dict[str, Any] = {"stop": ["STOP", "three"]}
    if streamed:
        chunks = await stream(api, **body)
        text, reason, usage = text_of(chunks), chunks[-3]["choices"][0]["finish_reason"], chunks[-2]["usage"]
    else:
        whole = (await api.chat(body)).json()
        choice = whole["choices"][0]
        text, reason, usage = choice["message"]["content"], choice["finish_reason"], whole["usage"]
    assert (text, reason) == ("one ", "stop")
    assert usage["completion_tokens"] == len("one STOP")
    assert api.engine.cancelled == [api.engine.requests[0].request_id]
    assert api.engine.yielded == len("one STOP")
    assert_clean(api)


async def test_stop_strings_wait_for_min_tokens() -> None:
    chunks = await stream(make_api(events_of("a.b.c.")), stop=".", min_tokens=3)
    assert text_of(chunks) == "a.b"


@pytest.mark.req("R76")
async def test_ids_and_logprobs_add_up_to_the_usage() -> None:
    """vllm#10234, sglang#4097: one entry per token, whatever text it shows; the stop token included."""
    api = make_api(events_of("a🚢"))
    chunks = await stream(api, return_token_ids=True, logprobs=True, top_logprobs=2)
    choices = [chunk["choices"][0] for chunk in chunks if kind_of(chunk) in ("content", "finish")]
    ids = [token for choice in choices for token in choice["token_ids"]]
    entries = [entry for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]]
    assert ids == [*byte_tokenizer().encode("a🚢"), EOS]
    assert len(entries) == chunks[-2]["usage"]["completion_tokens"] == len(ids)
    assert bytes(byte for entry in entries[:-1] for byte in entry["bytes"]).decode() == "a🚢"
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert chunks[0]["prompt_token_ids"] == api.engine.requests[0].prompt_ids
    whole = (await api.chat({"return_token_ids": True, "logprobs": True})).json()["choices"][0]
    assert whole["token_ids"] == ids
    assert len(whole["logprobs"]["content"]) == len(ids)


@pytest.mark.parametrize(
    ("error", "status", "code", "should_retry"),
    [
        (EngineOverloadedError("full"), 429, "queue_full", "true"),
        (RequestTooLargeError("too large"), 400, "context_length_exceeded", "false"),
        (EngineDeadError("gone"), 503, "engine_unavailable", "true"),
        (DeadlineExceededError("late"), 504, "deadline_exceeded", "false"),
        (RequestAbortedError("cut"), 503, "engine_unavailable", "true"),
        (RuntimeError("bug"), 500, "internal", "false"),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.req("R79")
async def test_an_error_before_the_first_event_is_a_status_never_a_stream(
    error: Exception, status: int, code: str, should_retry: str, streamed: bool
) -> None:
    """freellmapi PR#192: 200 was sent before admission was known."""
    api = make_api([error])
    response = await api.chat({"stream": streamed})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.headers["x-should-retry"] == should_retry
    assert ("retry-after" in response.headers) == (should_retry == "true")
    assert "text/event-stream" not in response.headers["content-type"]
    assert_clean(api)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineDeadError("gone"), "engine_unavailable"),
        (RequestAbortedError("cut"), "engine_unavailable"),
        (DeadlineExceededError("late"), "deadline_exceeded"),
        (RuntimeError("bug in the output handler"), "internal"),
    ],
)
@pytest.mark.req("R93", "R98")
async def test_a_late_failure_is_one_error_event_and_the_end_mark(error: Exception, code: str) -> None:
    """vllm-metal#199, mistral.rs#1874: the stream stopped without a word, or stayed open."""
    api = make_api([*events_of("abc")[:2], error])
    chunks = await stream(api)
    assert order_of(chunks) == ["role", "content", "error", "done"]
    assert chunks[-2]["error"]["code"] == code
    assert text_of(chunks) == "ab"
    assert_clean(api)


async def test_an_engine_that_ends_without_a_reason_is_an_error() -> None:
    """vllm-mlx#628: a stream that just ended looked like a complete answer."""
    chunks = await stream(make_api(events_of("abc")[:2]))
    assert order_of(chunks) == ["role", "content", "error", "done"]


async def test_an_engine_that_says_more_after_its_finish_is_not_listened_to() -> None:
    api = make_api([*events_of("abc"), *events_of("more")])
    chunks = await stream(api)
    assert text_of(chunks) == "abc"
    assert_clean(api)


@pytest.mark.parametrize("source", ["header", "body"])
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.req("R22")
async def test_the_clients_deadline_before_the_first_token_is_408(source: str, streamed: bool) -> None:
    api = make_api([asyncio.Event()])
    body: dict[str, Any] = {"stream": streamed}
    headers = {"x-pratique-deadline-ms": "300"} if source == "header" else {}
    if source == "body":
        body["deadline_ms"] = (
            300  # long enough to reach the engine on a busy machine, which is where it must be cancelled
        )
    response = await api.chat(body, **headers)
    assert (response.status_code, response.json()["error"]["code"]) == (408, "deadline_exceeded")
    assert response.headers["x-should-retry"] == "false"
    assert len(api.engine.cancelled) == 1
    assert_clean(api)


@pytest.mark.req("R22")
async def test_the_deadline_holds_while_others_prompts_are_tokenized() -> None:
    """Two prompts of megabytes fill the text pool for seconds: whoever waits behind them still has its deadline."""
    api = make_api([asyncio.Event()])
    others = threading.Event()
    for _ in range(api.state.limits.text_workers):
        api.state.text_pool.submit(others.wait, 5)
    try:
        response = await asyncio.wait_for(api.chat({"deadline_ms": 50}), 2)
    finally:
        others.set()
    assert (response.status_code, response.json()["error"]["code"]) == (408, "deadline_exceeded")
    assert_clean(api)


async def test_the_servers_limit_is_504() -> None:
    api = make_api([asyncio.Event()], spec_limits={"request_timeout_seconds": 0.05})
    response = await api.chat()
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")


@pytest.mark.req("R22", "R96")
async def test_a_deadline_in_mid_stream_is_an_error_event_and_stops_the_engine() -> None:
    api = make_api([*events_of("abc")[:2], asyncio.Event()])
    chunks = await stream(api, deadline_ms=400)
    assert order_of(chunks) == ["role", "content", "error", "done"]
    assert chunks[-2]["error"]["code"] == "deadline_exceeded"
    assert_clean(api)


@pytest.mark.parametrize("value", ["0", "-5", "soon", "1e3", "99999999999", "٣"])
async def test_a_deadline_header_that_is_no_number_is_refused(value: str) -> None:
    api = make_api()
    async with api.client() as client:
        response = await client.post(
            "/v1/chat/completions", json=chat_body(), headers=[(b"x-pratique-deadline-ms", value.encode())]
        )
    assert response.status_code == 400
    assert api.engine.requests == []


def raw(api: Api, **changes: Any) -> RawExchange:
    return RawExchange(api, json.dumps(chat_body(**changes)).encode())


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("moment", ["queued", "running"])
@pytest.mark.req("R95", "R96")
async def test_a_client_that_goes_away_ends_its_request_in_the_engine(streamed: bool, moment: str) -> None:
    """ROCm/ATOM#1562 (only streams were cancelled), vllm#10806, llama.cpp#24496: generation went on."""
    script: list[Step] = [] if moment == "queued" else [*events_of("abc")[:2]]
    api = make_api([*script, asyncio.Event()])
    exchange = raw(api, stream=streamed)
    running = asyncio.create_task(exchange.run())
    await eventually(lambda: bool(api.engine.live) and api.engine.yielded == len(script))
    await asyncio.sleep(0.01)
    sent = len(exchange.sent)
    exchange.disconnect()
    await asyncio.wait_for(running, 10)
    assert api.engine.cancelled == [api.engine.requests[0].request_id]
    assert len(exchange.sent) == sent
    assert_clean(api)


@pytest.mark.req("R88")
async def test_no_token_is_sent_after_a_disconnect() -> None:
    api = make_api([*events_of("ab")[:1], 0.05, *events_of("cdefg")])
    exchange = raw(api, stream=True)
    running = asyncio.create_task(exchange.run())
    await eventually(lambda: b'"content":"a"' in exchange.body)
    before = exchange.body
    exchange.disconnect()
    await asyncio.wait_for(running, 10)
    await asyncio.sleep(0.1)
    assert exchange.body == before
    assert api.engine.yielded == 1
    assert_clean(api)


@pytest.mark.parametrize("bound", ["bytes", "time"])
@pytest.mark.req("R83", "R84", "R107")
async def test_a_slow_reader_loses_its_own_stream_and_nothing_else(bound: str) -> None:
    """The reader takes the headers and the first chunk, then nothing: bytes or time cut it; the engine never waits."""
    bytes_max, stall = (4_000, 60.0) if bound == "bytes" else (10_000_000, 0.1)
    limits = ApiLimits(unread_bytes_max=bytes_max, stall_seconds_max=stall)
    api = make_api(
        [events_of("a")[0], 0.02, *(events_of("x" * 300) if bound == "bytes" else events_of("b")[:1]), asyncio.Event()],
        limits=limits,
    )
    exchange = raw(api, stream=True)
    running = asyncio.create_task(exchange.run())
    await eventually(lambda: len(exchange.sent) >= 1)
    exchange.writable.clear()
    if bound == "time":
        await eventually(lambda: bool(api.engine.cancelled))
        assert api.engine.yielded == 2
    await asyncio.wait_for(running, 10)
    assert exchange.aborted
    assert b"[DONE]" not in exchange.body
    assert_clean(api)
    other = make_api(events_of("fine"))
    assert text_of(await stream(other)) == "fine"
    assert b'pratique_stream_aborts_total{cause="slow_reader"} 1.0' in api.state.metrics.exposition()


async def test_a_burst_is_not_taken_for_a_slow_reader() -> None:
    """The engine's events of a second may come at once when the event loop was busy; the client reads well."""
    api = make_api(events_of("x" * 300), limits=ApiLimits(unread_bytes_max=4_000))
    assert text_of(await stream(api)) == "x" * 300


async def test_tokens_wait_merged_while_the_client_does_not_read() -> None:
    api = make_api([events_of("x")[0], 0.02, *events_of("x" * 99)])
    exchange = raw(api, stream=True)
    running = asyncio.create_task(exchange.run())
    await eventually(lambda: b'"content":"x"' in exchange.body)
    exchange.writable.clear()
    await eventually(lambda: not api.engine.live)
    exchange.writable.set()
    await asyncio.wait_for(running, 10)
    assert text_of(chunks_of(exchange.body)) == "x" * 100
    assert len(exchange.sent) < 20


@pytest.mark.req("R81")
async def test_each_token_is_written_when_it_comes() -> None:
    gate = asyncio.Event()
    api = make_api([*events_of("ab")[:1], gate, *events_of("b")])
    exchange = raw(api, stream=True)
    running = asyncio.create_task(exchange.run())
    await eventually(lambda: b'"content":"a"' in exchange.body)
    gate.set()
    await asyncio.wait_for(running, 10)
    assert text_of(chunks_of(exchange.body)) == "ab"


async def test_a_quiet_stream_sends_comments() -> None:
    """opencode#28729: a proxy cut a stream that was silent."""
    api = make_api([*events_of("a")[:1], 0.2, *events_of("b")], limits=ApiLimits(comment_seconds=0.03))
    response = await api.chat({"stream": True})
    assert response.content.count(b": keep-alive\n\n") >= 3
    assert text_of(chunks_of(response.content)) == "ab"


async def test_an_event_without_tokens_opens_the_stream() -> None:
    """An engine may say that a request is scheduled before its long prefill ends: from then on comments keep it alive."""
    scheduled = StepEvent(request_id="", token_ids=[])
    api = make_api([scheduled, 0.1, *events_of("a")], limits=ApiLimits(comment_seconds=0.02))
    response = await api.chat(STREAM)
    assert b": keep-alive" in response.content
    assert order_of(chunks_of(response.content)) == ["role", "content", "finish", "usage", "done"]


@pytest.mark.req("R24")
async def test_many_streams_at_once_stay_apart() -> None:
    """vllm#10583, vllm#15041: answers of two requests were mixed."""

    class EchoEngine(ScriptedEngine):
        async def _play(self, request: Any) -> Any:
            self.script = events_of(byte_tokenizer().decode(request.prompt_ids)[-40:])
            async for event in super()._play(request):
                await asyncio.sleep(0)
                yield event

    api = make_api(template="{{ messages[0].content }}")
    engine = EchoEngine()
    api.state.engine.set(engine)

    async def one(index: int) -> bool:
        content = f"ship number {index}"
        chunks = await stream(api, messages=[{"role": "user", "content": content}])
        return text_of(chunks) == content

    assert all(await asyncio.gather(*(one(index) for index in range(20))))
    assert engine.live == set()


async def test_the_response_has_the_headers_proxies_need() -> None:
    response = await make_api().chat({"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


@pytest.mark.req("R81")
def test_no_middleware_that_buffers_is_used() -> None:
    """starlette#1012: BaseHTTPMiddleware buffers streams and hides disconnects."""
    from starlette.middleware.base import BaseHTTPMiddleware

    async def build() -> Api:
        return make_api()

    app = asyncio.run(build()).app
    assert not any(issubclass(m.cls, BaseHTTPMiddleware) for m in app.user_middleware if isinstance(m.cls, type))
