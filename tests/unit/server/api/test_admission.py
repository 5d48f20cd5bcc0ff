"""A request that was let in under one verdict is not served under another: whatever happens between its headers and its first byte."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pratique_contract import Reason, Verdict, VerdictResult
from pratique_server.engine.protocol import FinishReason
from pratique_server.text import Renderer
from tests.unit.server.scripted import (
    FINGERPRINT,
    MODEL,
    PROBE_TOKEN,
    Api,
    RawExchange,
    byte_tokenizer,
    chat_body,
    compiled_template,
    events_of,
    eventually,
    make_api,
)

Change = Callable[[Api], None]


def lose_the_verdict(api: Api) -> None:
    """As after the loss of an engine: the next one is loaded and not proved yet."""
    api.verdicts.verdict = Verdict(result=VerdictResult.PENDING, reason=Reason.VERIFYING, message="the gate runs")


def serve_another_release(api: Api) -> None:
    api.state.release = replace(api.state.release, fingerprint="sha256:" + "cd" * 32)


CHANGES = pytest.mark.parametrize("change", [lose_the_verdict, serve_another_release])


class SlowBody(RawExchange):
    """Sends its headers, and its body when the test says so."""

    def __init__(self, api: Api, path: str, body: dict[str, Any], *, headers: dict[str, str] | None = None) -> None:
        super().__init__(api, json.dumps(body).encode(), headers=headers)
        self._scope |= {"path": path, "raw_path": path.encode()}
        self._rest = self._incoming.get_nowait()

    def send_body(self) -> None:
        self._incoming.put_nowait(self._rest)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


async def answer_after(change: Change, api: Api, exchange: SlowBody) -> int:
    running = asyncio.create_task(exchange.run())
    await eventually(lambda: len(api.state.live) == 1)
    await asyncio.sleep(0)
    change(api)
    exchange.send_body()
    await running
    return exchange.status


@CHANGES
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat_body()),
        ("/v1/chat/completions", chat_body(stream=True)),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [1]}),
        ("/render", {"messages": [{"role": "user", "content": "Hi"}]}),
    ],
)
async def test_a_body_that_comes_after_the_verdict_is_gone_is_not_served(
    change: Change, path: str, body: dict[str, Any]
) -> None:
    api = make_api()
    assert await answer_after(change, api, SlowBody(api, path, body)) == 503
    assert api.engine.requests == []


async def test_a_slow_body_is_served_while_the_verdict_stands_also_in_a_drain() -> None:
    def begin_drain(api: Api) -> None:
        api.state.status.begin_drain()
        api.state.status.refusing = True

    api = make_api()
    exchange = SlowBody(api, "/v1/chat/completions", chat_body())
    assert await answer_after(begin_drain, api, exchange) == 200
    body = json.loads(exchange.body)
    assert (body["model"], body["system_fingerprint"]) == (MODEL, FINGERPRINT)


async def test_the_gate_s_own_requests_need_no_verdict_at_any_time() -> None:
    api = make_api()
    exchange = SlowBody(api, "/v1/chat/completions", chat_body(), headers={"x-pratique-probe": PROBE_TOKEN})
    assert await answer_after(lose_the_verdict, api, exchange) == 200


@CHANGES
@pytest.mark.parametrize("stream", [False, True])
async def test_a_verdict_lost_while_the_prompt_is_rendered_keeps_it_from_the_engine(
    change: Change, stream: bool
) -> None:
    api = make_api()

    class Rendering(Renderer):
        def render(self, *args: Any, **more: Any) -> Any:
            change(api)
            return super().render(*args, **more)

    api.state.renderer = Rendering(api.state.renderer.template, byte_tokenizer())
    assert (await api.chat({"stream": stream})).status_code == 503
    assert api.engine.requests == []


async def test_a_prompt_that_waits_for_its_turn_is_rendered_by_the_renderer_that_was_proved() -> None:
    """Not by the one of the next engine, which the gate may refuse."""
    api = make_api()
    release = asyncio.Event()
    loop = asyncio.get_running_loop()
    busy = [
        api.state.text_pool.submit(lambda: asyncio.run_coroutine_threadsafe(release.wait(), loop).result())
        for _ in range(api.state.limits.text_workers)
    ]
    asked = asyncio.create_task(api.post("/render", {"messages": [{"role": "user", "content": "Hi"}]}))
    await eventually(lambda: api.state.text_pool._work_queue.qsize() > 0)
    api.state.renderer = Renderer(compiled_template("another"), byte_tokenizer())
    release.set()
    assert (await asked).json()["text"] != "another"
    assert all(future.result() for future in busy)


@CHANGES
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_whose_first_byte_would_come_after_the_verdict_is_gone_is_never_sent(
    change: Change, stream: bool
) -> None:
    going_on = asyncio.Event()
    api = make_api([going_on, *events_of("wrong")])
    asked = asyncio.create_task(api.chat({"stream": stream}))
    await eventually(lambda: len(api.engine.requests) == 1)
    change(api)
    going_on.set()
    response = await asked
    assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
    assert "wrong" not in response.text
    assert api.engine.live == set()


@CHANGES
async def test_a_stream_ends_with_an_error_when_its_pod_is_found_out(change: Change) -> None:
    """What this pod goes on to say is known to be wrong: re-verification, or the record that was kept, says so."""
    going_on = asyncio.Event()
    api = make_api([*events_of("right", finish=FinishReason.LENGTH)[:3], going_on, *events_of("WRONG")])
    exchange = RawExchange(api, json.dumps(chat_body(stream=True)).encode())
    running = asyncio.create_task(exchange.run())
    await eventually(lambda: b'"g"' in exchange.body)
    change(api)
    going_on.set()
    await running
    assert b'"code":"not_ready"' in exchange.body
    assert exchange.body.endswith(b"data: [DONE]\n\n")
    assert b'"W"' not in exchange.body
    assert api.engine.live == set()
