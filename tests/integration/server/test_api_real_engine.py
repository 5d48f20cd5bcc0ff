"""The API in front of the real torch engine, over a real socket, with the official client: every ending, and the engine back at its
baseline after each. At last the engine is lost in every way, and a new one is verified."""

import asyncio
import json
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from pratique_server.config import ApiLimits, EngineLimits
from pratique_server.serve import ServingProcess
from tests.integration.server import plain_sockets
from tests.integration.server.plain_sockets import connect, read_all
from tests.integration.server.running import Running, make_spec, serving, wait_until
from tests.support import models

pytestmark = pytest.mark.timeout(180)

KEY, OTHER_KEY = "key-of-the-harbour", "key-of-the-pilot"
HI: Any = [{"role": "user", "content": "What is pratique?"}]
LONG: dict[str, Any] = {"max_tokens": 450, "extra_body": {"ignore_eos": True}}
request_bytes = partial(plain_sockets.request_bytes, key=KEY)
LIMITS = ApiLimits(header_seconds_max=0.5, body_seconds_max=0.5, stall_seconds_max=1.0, unread_bytes_max=64 * 1024)


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    file.write_text(json.dumps({"harbour": KEY}))
    return file


@pytest.fixture(scope="module")
def served(keys_file: Path) -> Iterator[tuple[Running, ServingProcess]]:
    # Deep enough that a long answer takes a second or two: deadlines and disconnects must find it running.
    model = models.tiny_model(layers=8, hidden=128)
    spec, engine_limits = make_spec(model, api_keys_path=str(keys_file)), EngineLimits(restart_backoff_seconds=0.1)
    with serving(spec, api_limits=LIMITS, engine_limits=engine_limits) as (running, process):
        # Small socket buffers, so that a client that does not read is felt after kilobytes, not megabytes.
        process.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        running.wait_ready()
        yield running, process


@pytest.fixture
def server(served: tuple[Running, ServingProcess]) -> Running:
    return served[0]


@pytest.fixture(autouse=True)
def _leaves_the_engine_as_it_was(server: Running) -> Iterator[None]:
    server.wait_idle()
    yield
    server.wait_idle()


async def greedy(server: Running, **options: Any) -> Any:
    values: dict[str, Any] = {"model": "tiny", "messages": HI, "temperature": 0, "max_tokens": 24, **options}
    async with server.openai(KEY) as client:
        return await client.chat.completions.create(**values)


async def greedy_stream(server: Running, **options: Any) -> list[Any]:
    values: dict[str, Any] = {"model": "tiny", "messages": HI, "temperature": 0, "max_tokens": 24, **options}
    async with server.openai(KEY) as client:
        stream = await client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **values)
        return [chunk async for chunk in stream]


async def middle_ms(server: Running) -> int:
    """A time that ends a 450-token answer in its middle on this host as busy as it is now: what 110 tokens take."""
    started = time.monotonic()
    await greedy(server, max_tokens=110, extra_body={"ignore_eos": True})
    return round((time.monotonic() - started) * 1000)


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.req("R78", "R82", "R137")
async def test_the_official_client_streams_an_answer_of_the_verified_release(server: Running) -> None:
    chunks = await greedy_stream(server)
    whole = await greedy(server)
    assert text_of(chunks) == whole.choices[0].message.content != ""
    assert chunks[0].choices[0].delta.role == "assistant"
    finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in finishes if reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].usage == whole.usage
    manifest = server.management.get("/manifest").json()
    assert {chunk.system_fingerprint for chunk in chunks} == {manifest["fingerprint"]} == {whole.system_fingerprint}
    assert server.verdict()["fingerprint"] == manifest["fingerprint"]


async def test_the_fingerprint_and_request_id_are_in_the_headers(server: Running) -> None:
    async with server.openai(KEY) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="tiny", messages=HI, max_tokens=1, extra_headers={"x-request-id": "voyage-1"}
        )
    assert raw.headers["x-pratique-fingerprint"] == server.verdict()["fingerprint"]
    assert raw.headers["x-request-id"] == "voyage-1"
    assert raw.headers["x-pratique-contract"] == "1"


@pytest.mark.req("R137")
async def test_max_tokens_ends_with_length(server: Running) -> None:
    whole = await greedy(server, max_tokens=5, extra_body={"ignore_eos": True})
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 5)


@pytest.mark.req("R72", "R137")
async def test_a_stop_sequence_over_tokens_ends_the_answer_before_it(server: Running) -> None:
    full = (await greedy(server, max_tokens=40, extra_body={"ignore_eos": True})).choices[0].message.content
    stop = full[len(full) // 2 : len(full) // 2 + 3]
    chunks = await greedy_stream(server, max_tokens=400, stop=[stop], extra_body={"ignore_eos": True})
    assert text_of(chunks) == full[: full.index(stop)]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens < 60


async def test_ids_and_logprobs_come_for_every_token(server: Running) -> None:
    whole = await greedy(server, logprobs=True, top_logprobs=3, extra_body={"return_token_ids": True})
    choice = whole.choices[0]
    assert len(choice.token_ids) == len(choice.logprobs.content) == whole.usage.completion_tokens
    assert len(whole.prompt_token_ids) == whole.usage.prompt_tokens
    for entry in choice.logprobs.content:
        # Greedy: the chosen token is the most likely one.
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob, abs=1e-4)
        assert len(entry.top_logprobs) == 3


async def test_a_seed_repeats_and_another_seed_differs(server: Running) -> None:
    async def sampled(seed: int) -> str:
        options: dict[str, Any] = {"temperature": 2, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
        return str((await greedy(server, seed=seed, **options)).choices[0].message.content)

    first, again, other = await sampled(7), await sampled(7), await sampled(-8)
    assert first == again != other


async def test_a_malformed_request_names_its_field(server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await greedy(server, temperature=9)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "temperature")
    with pytest.raises(openai.NotFoundError):
        await greedy(server, model="gpt-4")
    with pytest.raises(openai.BadRequestError) as caught:
        await greedy(server, max_tokens=100_000)
    assert caught.value.code == "context_length_exceeded"


async def test_no_key_or_a_wrong_key_is_refused_on_every_route(server: Running) -> None:
    async with server.openai("wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="tiny", messages=HI)
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    async with server.http() as plain:
        for path in ("/tokenize", "/detokenize", "/render", "/v1/chat/completions", "/nowhere"):
            assert (await plain.post(path, json={})).status_code == 401


async def test_a_new_key_is_taken_without_a_restart_and_a_removed_one_is_refused(
    server: Running, keys_file: Path
) -> None:
    async def status(key: str) -> int:
        async with server.http(headers={"authorization": f"Bearer {key}"}) as client:
            return (await client.get("/v1/models")).status_code

    assert await status(OTHER_KEY) == 401
    keys_file.write_text(json.dumps({"harbour": KEY, "pilot": [OTHER_KEY]}))
    await asyncio.sleep(1.1)
    assert (await status(OTHER_KEY), await status(KEY)) == (200, 200)
    keys_file.write_text(json.dumps({"harbour": KEY}))
    await asyncio.sleep(1.1)
    assert await status(OTHER_KEY) == 401


@pytest.mark.req("R22", "R137")
async def test_the_clients_deadline_ends_a_stream_with_an_error_event(server: Running) -> None:
    seen = []
    async with server.openai(KEY) as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=HI,
            stream=True,
            max_tokens=450,
            extra_body={"ignore_eos": True, "deadline_ms": await middle_ms(server)},
        )
        with pytest.raises(openai.APIError) as caught:  # noqa: PT012 - reading is what raises, at some chunk
            async for chunk in stream:
                seen.append(chunk)  # noqa: PERF401 - what was read before the error is what counts
    assert caught.value.code == "deadline_exceeded"
    assert seen
    assert all(chunk.choices[0].finish_reason is None for chunk in seen)


async def test_a_deadline_before_the_first_token_is_a_status(server: Running) -> None:
    async with server.openai(KEY) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(
                model="tiny", messages=HI, stream=True, extra_headers={"x-pratique-deadline-ms": "1"}
            )
    assert (caught.value.status_code, caught.value.code) == (408, "deadline_exceeded")


@pytest.mark.req("R83", "R85", "R86", "R87", "R137")
async def test_a_client_that_leaves_its_stream_frees_the_engine(server: Running) -> None:
    """vllm#10806, llama.cpp#24496: generation went on after the connection was closed."""
    async with server.openai(KEY) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=HI, stream=True, max_tokens=400, extra_body={"ignore_eos": True}
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
    left_at = server.stats()["steps"]
    server.wait_idle(seconds=1.5)
    assert server.stats()["steps"] - left_at < 200


@pytest.mark.req("R85", "R86", "R87")
def test_a_client_that_leaves_without_streaming_frees_the_engine(server: Running) -> None:
    """ROCm/ATOM#1562: only streams were cancelled."""
    body = {"model": "tiny", "messages": HI, "max_tokens": 450, "ignore_eos": True}
    before, cancelled = server.stats()["steps"], count(server, "cancelled")
    with connect(server) as connection:
        connection.sendall(request_bytes(json.dumps(body).encode()))
        time.sleep(0.1)
    wait_until(lambda: count(server, "cancelled") == cancelled + 1, seconds=3)
    server.wait_idle(seconds=1.5)
    assert server.stats()["steps"] - before < 440


def count(server: Running, ending: str) -> float:
    """Requests that ended so, whatever their code."""
    lines = server.management.get("/metrics").text.splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith("pratique_requests_total{") and f'ending="{ending}"' in line
    )


async def test_concurrent_streams_say_what_each_says_alone(server: Running) -> None:
    prompts: list[Any] = [[{"role": "user", "content": f"Tell me of ship {n} {'and its crew ' * n}"}] for n in range(8)]
    alone = [text_of(await greedy_stream(server, messages=prompt)) for prompt in prompts]
    together = await asyncio.gather(*(greedy_stream(server, messages=prompt) for prompt in prompts))
    assert [text_of(chunks) for chunks in together] == alone


@pytest.mark.req("R24")
async def test_a_live_request_id_is_refused_and_free_again_afterwards(server: Running) -> None:
    """vllm#10583, vllm PR#27987: two requests with one id killed or mixed each other."""
    headers = {"x-request-id": "voyage-twice"}
    async with server.openai(KEY) as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=HI,
            stream=True,
            max_tokens=300,
            extra_headers=headers,
            extra_body={"ignore_eos": True},
        )
        with pytest.raises(openai.ConflictError) as caught:
            await client.chat.completions.create(model="tiny", messages=HI, extra_headers=headers)
        assert caught.value.code == "duplicate_request"
        await stream.close()
    server.wait_idle()
    async with server.openai(KEY) as client:
        await client.chat.completions.create(model="tiny", messages=HI, max_tokens=1, extra_headers=headers)


@pytest.mark.req("R26", "R29")
async def test_render_and_tokenize_agree_with_what_is_counted(server: Running) -> None:
    async with server.http(headers={"authorization": f"Bearer {KEY}"}) as client:
        rendered = (await client.post("/render", json={"messages": HI})).json()
        tokenized = (await client.post("/tokenize", json={"prompt": rendered["text"]})).json()
        text = (await client.post("/detokenize", json={"tokens": tokenized["tokens"]})).json()["prompt"]
    whole = await greedy(server, max_tokens=1)
    assert rendered["ids"] == tokenized["tokens"]
    assert text == rendered["text"]
    assert whole.usage.prompt_tokens == tokenized["count"]


def test_a_request_pipelined_after_an_error_is_answered_in_its_turn(server: Running) -> None:
    good = json.dumps({"model": "tiny", "messages": HI, "max_tokens": 1}).encode()
    with connect(server) as connection:
        connection.sendall(request_bytes(b"{") + request_bytes(good, extra="Connection: close\r\n"))
        received = read_all(connection)
    first, second = received.split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"400")
    assert second.startswith(b"200")
    assert b'"chat.completion"' in second


def test_headers_that_never_end_cost_the_connection(server: Running) -> None:
    """Slowloris: bytes keep coming, the request never does."""
    with connect(server) as connection:
        started = time.monotonic()
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n")
        with pytest.raises(OSError):  # noqa: PT011, PT012 - reset or broken pipe, at whichever line it comes
            for _ in range(60):
                connection.sendall(b"X-Slow: 1\r\n")
                time.sleep(0.05)
        assert time.monotonic() - started < 2.5


def test_a_connection_that_says_nothing_is_closed(server: Running) -> None:
    with connect(server) as connection:
        assert read_all(connection, seconds=3) == b""


def test_a_body_that_never_ends_is_refused_and_closed(server: Running) -> None:
    with connect(server) as connection:
        connection.sendall(request_bytes(b'{"model":', length=1000))
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in received.lower()


def test_a_hundred_megabytes_are_refused_in_words(server: Running) -> None:
    """The client reads 413, not a reset connection."""
    with connect(server) as connection:
        connection.sendall(request_bytes(b"", length=100_000_000))
        try:
            for _ in range(100):
                connection.sendall(b" " * 1_000_000)
        except OSError:
            pass
        received = b""
        while b"request_too_large" not in received:
            part = connection.recv(65536)
            assert part, received
            received += part
    assert received.startswith(b"HTTP/1.1 413")


@pytest.mark.req("R83", "R84")
def test_a_client_that_does_not_read_loses_its_stream_and_others_do_not_notice(server: Running) -> None:
    body = {
        "model": "tiny",
        "messages": HI,
        "stream": True,
        "max_tokens": 400,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 20,
    }
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", server.api_port))
    with slow:
        slow.sendall(request_bytes(json.dumps(body).encode()))
        other = asyncio.run(greedy(server, max_tokens=10, extra_body={"ignore_eos": True}))
        assert other.usage.completion_tokens == 10
        cut = 'pratique_stream_aborts_total{cause="slow_reader"} 1.0'
        wait_until(lambda: cut in server.management.get("/metrics").text, seconds=5)
        server.wait_idle()
        received = read_all(slow)
        assert b"[DONE]" not in received
        assert not received.endswith(b"0\r\n\r\n"), "a cut answer must not look complete"


@pytest.mark.req("R100")
async def test_metrics_count_the_five_endings(server: Running) -> None:
    endings = ("stop", "limit", "rejected", "failed", "cancelled")
    text = (await greedy(server, max_tokens=20, extra_body={"ignore_eos": True})).choices[0].message.content
    deadline_ms = await middle_ms(server)
    before = {ending: count(server, ending) for ending in endings}
    await greedy(server, max_tokens=20, extra_body={"ignore_eos": True})
    await greedy(server, stop=[text[3:6]], extra_body={"ignore_eos": True})
    with pytest.raises(openai.BadRequestError):
        await greedy(server, temperature=9)
    late = {"ignore_eos": True, "deadline_ms": deadline_ms}
    with pytest.raises(openai.APIError):
        await greedy_stream(server, max_tokens=450, extra_body=late)
    with connect(server) as connection:
        body = {"model": "tiny", "messages": HI, "max_tokens": 450, "ignore_eos": True}
        connection.sendall(request_bytes(json.dumps(body).encode()))
        await asyncio.sleep(0.1)
    wait_until(lambda: count(server, "cancelled") > before["cancelled"], seconds=3)
    assert {ending: count(server, ending) - before[ending] for ending in endings} == dict.fromkeys(endings, 1)
    metrics = server.management.get("/metrics").text
    assert "vllm:num_requests_running" in metrics
    assert "pratique_release_info{" in metrics


@pytest.mark.req("R86", "R140")
async def test_a_storm_of_clients_that_come_and_go_leaves_nothing_behind(server: Running) -> None:
    """vllm#46283, sglang#36475: aborted requests kept their blocks."""
    chance = random.Random(7)
    plans = [(kind, chance.uniform(0, 0.3)) for kind in ("stay", "leave", "late") * 20]
    chance.shuffle(plans)

    async def one(client: openai.AsyncOpenAI, kind: str, seconds: float) -> str:
        extra = {"ignore_eos": True, **({"deadline_ms": 1 + int(seconds * 1000)} if kind == "late" else {})}
        work = asyncio.ensure_future(read(client, max_tokens=10 if kind == "stay" else 400, extra_body=extra))
        if kind == "leave":
            await asyncio.sleep(seconds)
            work.cancel()
        try:
            return await work
        except asyncio.CancelledError:
            return "left"
        except openai.APIError as error:
            return str(error.code)

    async def read(client: openai.AsyncOpenAI, **options: Any) -> str:
        stream = await client.chat.completions.create(model="tiny", messages=HI, stream=True, **options)
        async with stream:
            reasons = [chunk.choices[0].finish_reason async for chunk in stream]
        return str(reasons[-1])

    async with server.openai(KEY) as client:
        ends = await asyncio.gather(*(one(client, kind, seconds) for kind, seconds in plans))
    by_kind = {
        kind: {end for (planned, _), end in zip(plans, ends, strict=True) if planned == kind} for kind, _ in plans
    }
    assert by_kind["stay"] == {"length"}
    assert by_kind["leave"] <= {"left", "length"}
    assert by_kind["late"] <= {"deadline_exceeded", "length"}
    assert "left" in by_kind["leave"]
    assert "deadline_exceeded" in by_kind["late"]
    server.wait_idle(seconds=5)


async def open_stream(server: Running) -> tuple[openai.AsyncOpenAI, Any]:
    client = server.openai(KEY)
    stream = await client.chat.completions.create(model="tiny", messages=HI, stream=True, **LONG)
    await anext(aiter(stream))
    return client, stream


@pytest.mark.req("R60", "R93")
def test_a_crashed_engine_ends_streams_with_an_error_and_a_new_one_is_verified(
    served: tuple[Running, ServingProcess],
) -> None:
    """vllm#36960, kserve#6259: healthy after the engine died."""
    server, process = served
    first = server.stats()["epoch"]

    async def crash_under_a_stream() -> openai.APIError:
        client, stream = await open_stream(server)
        os.kill(engine_pid(process), signal.SIGKILL)
        with pytest.raises(openai.APIError) as caught:  # noqa: PT012 - reading is what raises
            async for chunk in stream:
                assert not chunk.choices or chunk.choices[0].finish_reason is None
        await client.close()
        return caught.value

    error = asyncio.run(crash_under_a_stream())
    assert error.code == "engine_unavailable"
    wait_until(lambda: server.probe("readyz")[0] == 503, seconds=3)
    assert server.probe("livez")[0] == 200
    server.wait_ready()
    assert server.stats()["epoch"] == first + 1
    server.wait_idle()
    assert asyncio.run(greedy(server, max_tokens=3)).choices


def engine_pid(process: Any) -> int:
    return int(process.engine._core.process.pid)


@pytest.mark.req("R93")
def test_a_fault_in_reading_the_engines_output_ends_every_stream_with_an_error(
    served: tuple[Running, ServingProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that hands out tokens failed and every stream waited for ever."""
    server, process = served
    engine: Any = process.engine

    def broken(report: object) -> None:
        raise RuntimeError("a bug in the output handler")

    async def two_streams() -> list[str | None]:
        streams = [await open_stream(server) for _ in range(2)]
        monkeypatch.setattr(engine, "_deliver", broken)
        codes = []
        for client, stream in streams:
            with pytest.raises(openai.APIError) as caught:
                async for _ in stream:
                    pass
            codes.append(caught.value.code)
            await client.close()
        monkeypatch.undo()
        return codes

    assert asyncio.run(asyncio.wait_for(two_streams(), 10)) == ["engine_unavailable"] * 2
    server.wait_ready()
