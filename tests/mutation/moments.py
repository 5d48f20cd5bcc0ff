"""How harmless variations of the host, the moment and the wire are made, and what is looked at after the verdict."""

import json
import os
import pkgutil
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import torch

from tests.integration.server.running import serving, wait_until
from tests.mutation.fault import Arrange
from tests.mutation.faults.streams import Kinds, read, write
from tests.mutation.scene import Judged, Scene
from tests.support.broken_streams import Events

# The host and the moment


def one_thread_more(scene: Scene) -> None:
    threads = torch.get_num_threads()
    scene.cleanups.append(lambda: torch.set_num_threads(threads))
    torch.set_num_threads(threads + 1)


def slowed(target: str, seconds: float) -> Arrange:
    """A function of the server that takes its time."""

    def arrange(scene: Scene) -> None:
        original = pkgutil.resolve_name(target)

        def slow(*args: Any, **fields: Any) -> Any:
            time.sleep(seconds)
            return original(*args, **fields)

        scene.monkeypatch.setattr(target, slow)

    return arrange


def slow_steps(engine: Any, scene: Scene) -> None:
    step = engine.step

    def slow() -> Any:
        time.sleep(0.01)
        return step()

    scene.monkeypatch.setattr(engine, "step", slow)


class BusyFirst:
    """The first requests are turned away: the pod is saturated."""

    def __init__(self, app: Any, count: int) -> None:
        self._app, self._left = app, count

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/v1/chat/completions" or self._left <= 0:
            await self._app(scope, receive, send)
            return
        self._left -= 1
        await receive()
        body = json.dumps({"error": {"code": "queue_full", "message": "try again"}}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 429, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Fragments:
    """Every write becomes many small ones."""

    def __init__(self, app: Any, size: int) -> None:
        self._app, self._size = app, size

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def fragmented(message: Any) -> None:
            body = message.get("body", b"")
            if message["type"] != "http.response.body" or len(body) <= self._size:
                await send(message)
                return
            for start in range(0, len(body), self._size):
                await send({**message, "body": body[start : start + self._size], "more_body": True})
            if not message.get("more_body", False):
                await send({"type": "http.response.body", "body": b""})

        await self._app(scope, receive, fragmented)


def hammered(path: str, workers: int = 8) -> Arrange:
    """Many clients besides the knocking user, on one port, for as long as the pod proves itself."""

    def arrange(scene: Scene) -> None:
        def hammer(server: Any) -> Callable[[], None]:
            stop = threading.Event()
            base = server.api_url if path.startswith("/v1") else str(server.management.base_url)

            def run() -> None:
                with httpx.Client(timeout=30, trust_env=False) as client:
                    while not stop.is_set():
                        try:
                            client.request("POST" if path.startswith("/v1") else "GET", f"{base}{path}", json={})
                        except httpx.TransportError:
                            time.sleep(0.01)

            threads = [threading.Thread(target=run) for _ in range(workers)]
            for thread in threads:
                thread.start()

            def end() -> None:
                stop.set()
                for thread in threads:
                    thread.join(35)

            return end

        scene.while_proving.append(hammer)

    return arrange


# After the verdict


def many_at_once(judged: Judged) -> None:
    """Right after readiness, sixteen users at once."""
    statuses: list[int] = []
    question = {"model": "tiny", "messages": [{"role": "user", "content": "Ahoy"}], "max_tokens": 8, "stream": True}

    def one() -> None:
        answer = httpx.post(f"{judged.server.api_url}/v1/chat/completions", json=question, timeout=30, trust_env=False)
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=one) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(35)
    assert statuses == [200] * 16


def golden_prompts_again(judged: Judged) -> None:
    """Users ask the golden prompts, whose prefixes have been computed before: the answers are the recorded ones."""
    for case in judged.scene.record.golden.cases:
        body = {"model": "tiny", "messages": list(case.messages), "max_tokens": case.max_tokens, "temperature": 0}
        for _ in range(2):
            answer = httpx.post(f"{judged.server.api_url}/v1/chat/completions", json=body, timeout=30, trust_env=False)
            assert answer.json()["choices"][0]["message"]["content"] == case.outputs[0].text


def proved_again(judged: Judged) -> None:
    """Idle re-verification sends the golden cases again, after users' requests."""
    wait_until(lambda: judged.server.verdict().get("reverification") is not None, seconds=20)
    verdict = judged.server.verdict()
    assert (verdict["result"], verdict["reverification"]["result"]) == ("Pass", "Pass")


def engine_replaced(judged: Judged) -> None:
    """The engine is killed; the next one is proved anew and serves."""
    engine: Any = judged.process.engine
    epoch = judged.server.stats()["epoch"]
    os.kill(int(engine._core.process.pid), signal.SIGKILL)
    wait_until(lambda: judged.server.probe("readyz")[0] == 503, seconds=30)
    judged.server.wait_ready(seconds=180)
    assert judged.server.stats()["epoch"] > epoch


def drained(judged: Judged) -> None:
    """A drain begins: the pod leaves its endpoints and its verdict stays what it was."""
    judged.server.management.post("/drain")
    wait_until(lambda: judged.server.probe("readyz")[0] == 503, seconds=5)
    assert judged.server.verdict()["result"] == "Pass"


def second_replica(judged: Judged) -> None:
    """Another pod of the same release proves itself beside this one."""
    with serving(judged.scene.spec(), start_engine=judged.scene.start_engine) as (other, _):
        other.wait_ready()
        assert other.verdict()["fingerprint"] == judged.server.verdict()["fingerprint"]


def with_key(judged: Judged) -> None:
    question = {"model": "tiny", "messages": [{"role": "user", "content": "Ahoy"}], "max_tokens": 4}
    url = f"{judged.server.api_url}/v1/chat/completions"
    answer = httpx.post(url, json=question, headers={"authorization": "Bearer k-1"}, timeout=30, trust_env=False)
    assert answer.status_code == 200


def api_keys(scene: Scene) -> None:
    keys = scene.room / "keys"
    keys.mkdir()
    (keys / "harbour").write_text("k-1\n")
    scene.declare(api_keys_path=str(keys))


# Streams that only look otherwise


def with_comments(events: Events) -> Events:
    return [part for event in events for part in (b": keep-alive\n\n", event)]


def contents_joined(events: Events) -> Events:
    """Two tokens in one event, as after a stall of the client."""
    kinds = Kinds(events)
    if kinds.last == kinds.first:
        return events
    first, second = read(events[kinds.last - 1]), read(events[kinds.last])
    one, other = first["choices"][0], second["choices"][0]
    one["delta"]["content"] += other["delta"]["content"]
    one["token_ids"] += other["token_ids"]
    one["logprobs"]["content"] += other["logprobs"]["content"]
    return [*events[: kinds.last - 1], write(first), *events[kinds.last + 1 :]]


def with_more_fields(events: Events) -> Events:
    return [event if b"[DONE]" in event else write({**read(event), "service_tier": None}) for event in events]


def more_headers(message: Any) -> Any:
    return {**message, "headers": [(b"x-proxy", b"harbour"), *message["headers"]]}
