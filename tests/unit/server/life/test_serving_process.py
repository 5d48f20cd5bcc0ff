"""The serving process over real sockets with a scripted engine: what each end of its life looks like from outside. The same with the
real engine is in ``tests/integration/server/test_api_lifecycle.py``."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from pratique_contract import ServingSpec
from pratique_server import probe
from pratique_server.config import EngineLimits
from pratique_server.engine.protocol import (
    EngineDeadError,
    EngineError,
    EngineIdentity,
    EngineStats,
    ExecutionRequest,
    LoadedFile,
    StepEvent,
)
from pratique_server.serve import ServingProcess
from pratique_server.text import Tokenizer
from tests.unit.server.scripted import ScriptedEngine, Step, events_of, eventually, idle_stats

QUICK = EngineLimits(poll_seconds=0.01, restart_backoff_seconds=0.01, restarts_max=2)
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}


@dataclass
class LivingEngine(ScriptedEngine):
    """A scripted engine that can die and be restarted. ``load_errors`` are raised by the next starts, first to last."""

    load_errors: list[Exception] = field(default_factory=list)
    epoch: int = 1
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False
    heartbeat_age: float = 0.0

    def start(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
        return self._play_until_dead(request)

    async def _play_until_dead(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
        # The gate asks for few tokens and must get a finish within them.
        script = self.script if not request.reserved else events_of_gate(request)
        player = ScriptedEngine(script, live=self.live, cancelled=self.cancelled, requests=self.requests)
        playing = player.start(request)
        while True:
            step, dying = asyncio.ensure_future(anext(playing)), asyncio.ensure_future(self.dead.wait())
            try:
                await asyncio.wait({step, dying}, return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    raise EngineDeadError("The engine process ended.")
                event = step.result()
            except StopAsyncIteration:
                return
            finally:
                for task in (step, dying):
                    task.cancel()
                await asyncio.gather(step, dying, return_exceptions=True)
            self.yielded += 1
            yield event

    async def identity(self) -> EngineIdentity:
        return EngineIdentity(
            engine_name="Scripted",
            engine_version="1",
            engine_build="sha256:" + "0" * 64,
            libraries={},
            architecture="Scripted",
            model_files=[LoadedFile(path="model.safetensors", size=1, sha256="sha256:" + "1" * 64)],
            dtype="FP32",
            quantization_method="None",
            quantization_config={},
            quantized_tensors=[],
            kept_tensors=[],
            vocab_size=1000,
            context_limit=512,
            flags={},
            device_class="cpu",
            runtime_facts={},
        )

    async def stats(self) -> EngineStats:
        return idle_stats(
            running=len(self.live), steps=self.yielded, epoch=self.epoch, heartbeat_age_seconds=self.heartbeat_age
        )

    async def wait_dead(self) -> None:
        await self.dead.wait()

    async def restart(self) -> EngineIdentity:
        self._load()
        self.epoch += 1
        return await self.identity()

    async def close(self) -> None:
        self.closed = True
        self.dead.set()

    def _load(self) -> None:
        if self.load_errors:
            raise self.load_errors.pop(0)
        self.closed = False
        self.dead.clear()


def events_of_gate(request: ExecutionRequest) -> list[Step]:
    """A plain answer in ids of the tiny tokenizer that ends by itself with its stop token."""
    return [
        *(StepEvent(request_id="", token_ids=[token]) for token in (67, 68, 69)),
        StepEvent(request_id="", token_ids=[request.stop_token_ids[0]], finish=events_of("a")[-1].finish),
    ]


@pytest.fixture(scope="module", autouse=True)
def _libraries_are_imported(tiny_model_dir: Path) -> None:
    """The first load of a tokenizer imports half a machine-learning stack; that is not what the tests' time limits are for."""
    Tokenizer.load(tiny_model_dir)


@dataclass
class Pod:
    """A serving process and what can be seen of it from outside."""

    process: ServingProcess
    engine: LivingEngine
    running: "asyncio.Task[int]"

    async def get(self, name: str) -> tuple[int, str]:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.process.management_port}") as client:
            response = await client.get(f"/{name}")
        return response.status_code, response.text.strip()

    async def chat(self, **changes: Any) -> httpx.Response:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.process.api_port}") as client:
            return await client.post("/v1/chat/completions", json={**BODY, **changes})

    async def until(self, name: str, status: int) -> None:
        async with asyncio.timeout(30):
            while (await self.get(name))[0] != status:
                await asyncio.sleep(0.01)

    async def verdict(self) -> Any:
        async with asyncio.timeout(30):
            while self.process.holder.current().result == "Pending":
                await asyncio.sleep(0.01)
        return json.loads((await self.get("verdict"))[1])


@asynccontextmanager
async def pod(
    model: Path,
    *,
    script: list[Step] | None = None,
    engine_limits: EngineLimits = QUICK,
    load_errors: list[Exception] | None = None,
    start: Callable[[LivingEngine], Any] | None = None,
    **spec: Any,
) -> AsyncIterator[Pod]:
    values: dict[str, Any] = {
        "served_model_name": "tiny",
        "model": {"path": str(model), "uri": f"file://{model}"},
        "release": {"policy": "TrustFirst"},
        "host": "127.0.0.1",
        "api_port": 0,
        "management_port": 0,
        "drain": {"pre_stop_seconds": 0.05, "deadline_seconds": 5},
    }
    engine = LivingEngine(script or events_of("ok"), load_errors=load_errors or [])

    async def start_engine(_: ServingSpec) -> LivingEngine:
        engine._load()
        return engine

    process = ServingProcess(
        ServingSpec.model_validate({**values, **spec}), start_engine=start_engine, engine_limits=engine_limits
    )
    running = asyncio.create_task(process.run())
    try:
        yield Pod(process, engine, running)
    finally:
        await asyncio.sleep(0)
        if not running.done():
            process.stop(hurry=True)
        async with asyncio.timeout(30):
            await running


async def test_serves_after_the_gate_has_passed_through_the_pods_own_port(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir) as it:
        await it.until("readyz", 200)
        assert {request.reserved for request in it.engine.requests} == {True}
        response = await it.chat()
        assert response.status_code == 200
        manifest = json.loads((await it.get("manifest"))[1])
        assert response.headers["x-pratique-fingerprint"] == manifest["fingerprint"]


@pytest.mark.req("R125", "R127")
async def test_a_pod_whose_release_is_not_proved_stays_alive_and_refuses_traffic(tiny_model_dir: Path) -> None:
    release = {"policy": "Enforce", "fingerprint": "sha256:" + "0" * 64}
    async with pod(tiny_model_dir, release=release) as it:
        verdict = await it.verdict()
        assert (verdict["result"], verdict["reason"]) == ("Fail", "GoldenMissing")
        line = f"GoldenMissing: {verdict['message']}"
        assert await it.get("startupz") == (503, line)
        assert await asyncio.to_thread(probe.ask, "127.0.0.1", it.process.management_port, "startupz") == (False, line)
        assert (await it.get("readyz"))[0] == 503
        assert (await it.get("livez"))[0] == 200
        response = await it.chat()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
        assert response.headers["retry-after"] == "5"
        assert it.engine.requests == []


async def test_a_release_that_cannot_be_loaded_says_why_and_stays_up(tiny_model_dir: Path, tmp_path: Path) -> None:
    broken = tmp_path / "template.jinja"
    broken.write_text("{% if %}")
    cases: list[tuple[dict[str, Any], list[Exception], str]] = [
        ({}, [EngineError("model.safetensors is cut short.")], "ModelMismatch"),
        ({}, [EngineDeadError("killed")], "EngineUnreachable"),
        ({"tokenizer": {"path": str(tmp_path / "none"), "uri": "file:///none"}}, [], "TokenizerMismatch"),
        ({"chat_template": "{% if %}"}, [], "TemplateMismatch"),
        # Both sides fail: the model is the first part.
        ({"chat_template": "{% if %}"}, [EngineError("There is no model.")], "ModelMismatch"),
    ]
    for spec, load_errors, reason in cases:
        async with pod(tiny_model_dir, load_errors=load_errors, **spec) as it:
            verdict = await it.verdict()
            assert (verdict["result"], verdict["reason"]) == ("Fail", reason)
            assert await it.get("startupz") == (503, f"{reason}: {verdict['message']}")
            assert (await it.get("livez"))[0] == 200
            assert not it.running.done()


@pytest.mark.req("R60", "R93")
async def test_a_dead_engine_is_replaced_and_verified_again(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir, script=[*events_of("ab")[:1], asyncio.Event()]) as it:
        await it.until("readyz", 200)
        gate_requests = len(it.engine.requests)
        stream = asyncio.create_task(it.chat(stream=True))
        await eventually(lambda: len(it.engine.requests) > gate_requests)
        it.engine.load_errors = [EngineError("not yet")]
        it.engine.dead.set()
        body = (await stream).text
        assert '"code":"engine_unavailable"' in body
        assert body.endswith("data: [DONE]\n\n")
        await it.until("readyz", 200)
        assert len(it.engine.requests) > gate_requests + 1, "the gate must have run again"
        assert it.process.status.stats is not None


async def test_while_the_engine_is_away_requests_are_refused_not_hung(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir, engine_limits=EngineLimits(poll_seconds=0.01, restart_backoff_seconds=0.5)) as it:
        await it.until("readyz", 200)
        it.engine.dead.set()
        await it.until("readyz", 503)
        assert (await it.get("readyz"))[1].startswith("EngineUnreachable")
        response = await it.chat()
        assert (response.status_code, response.headers["x-should-retry"]) == (503, "true")
        await it.until("readyz", 200)


async def test_an_engine_that_keeps_dying_ends_the_process(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir, engine_limits=EngineLimits(poll_seconds=0.01, restarts_max=0)) as it:
        await it.until("readyz", 200)
        it.engine.dead.set()
        async with asyncio.timeout(20):
            assert await it.running == 1
        assert it.process.holder.current().reason == "EngineUnreachable"


async def test_a_silent_engine_is_not_ready_and_then_replaced(tiny_model_dir: Path) -> None:
    """vllm PR#46811: health said yes while the engine hung."""
    limits = EngineLimits(
        poll_seconds=0.01, heartbeat_seconds_max=5, silence_seconds_max=50, restart_backoff_seconds=0.01
    )
    async with pod(tiny_model_dir, engine_limits=limits) as it:
        await it.until("readyz", 200)
        it.engine.heartbeat_age = 20
        await it.until("readyz", 503)
        assert it.engine.epoch == 1
        assert (await it.get("livez"))[0] == 200
        it.engine.heartbeat_age = 100
        await eventually(lambda: it.engine.epoch == 2)
        it.engine.heartbeat_age = 0
        await it.until("readyz", 200)


async def test_a_drain_finishes_live_streams_and_refuses_new_requests(tiny_model_dir: Path) -> None:
    hold = asyncio.Event()
    async with pod(tiny_model_dir, script=[*events_of("ab")[:1], hold, *events_of("c")]) as it:
        await it.until("readyz", 200)
        stream = asyncio.create_task(it.chat(stream=True))
        await eventually(lambda: len(it.engine.live) == 1)
        it.process.stop()
        await it.until("readyz", 503)
        assert (await it.get("readyz"))[1].startswith("Draining")
        await eventually(lambda: it.process.status.refusing)
        refused = await it.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["connection"] == "close"
        assert (await it.get("livez"))[0] == 200
        hold.set()
        assert (await stream).text.endswith("data: [DONE]\n\n")
        async with asyncio.timeout(20):
            assert await it.running == 0
        assert it.engine.closed


async def test_new_requests_are_answered_until_the_endpoints_are_gone(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir, drain={"pre_stop_seconds": 30, "deadline_seconds": 60}) as it:
        await it.until("readyz", 200)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{it.process.management_port}") as client:
            assert (await client.post("/drain")).json() == {"draining": True}
        await it.until("readyz", 503)
        it.process.stop()
        response = await it.chat()
        assert (response.status_code, response.headers["connection"]) == (200, "close")


async def test_a_pod_that_never_was_ready_stops_at_once(tiny_model_dir: Path) -> None:
    drain = {"pre_stop_seconds": 30, "deadline_seconds": 60}
    async with pod(tiny_model_dir, load_errors=[EngineError("There is no model.")], drain=drain) as it:
        await it.verdict()
        it.process.stop()
        async with asyncio.timeout(20):
            assert await it.running == 0


async def test_a_second_signal_or_the_deadline_cuts_what_is_left(tiny_model_dir: Path) -> None:
    for second_signal in (True, False):
        deadline = 60 if second_signal else 0.3
        drain = {"pre_stop_seconds": 0.05, "deadline_seconds": deadline}
        async with pod(tiny_model_dir, script=[*events_of("ab")[:1], asyncio.Event()], drain=drain) as it:
            await it.until("readyz", 200)
            stream = asyncio.create_task(it.chat(stream=True))
            await eventually(lambda: len(it.engine.live) == 1)
            it.process.stop()
            if second_signal:
                it.process.stop()
            async with asyncio.timeout(20):
                body = (await stream).text
                assert await it.running == 0
            assert '"code":"draining"' in body
            assert body.endswith("data: [DONE]\n\n")


async def test_a_taken_port_is_an_error_at_once(tiny_model_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            async with pod(tiny_model_dir, management_port=taken.getsockname()[1]):
                pass


async def test_the_management_port_answers_while_the_event_loop_is_stuck(tiny_model_dir: Path) -> None:
    """vllm PR#43122, vllm#39863: health was blocked by the work it should report on."""
    with ThreadPoolExecutor(1) as pool:
        async with pod(tiny_model_dir) as it:
            await it.until("readyz", 200)
            asking = pool.submit(probe.ask, "127.0.0.1", it.process.management_port, "readyz")
            stuck_until = time.monotonic() + 10
            while not asking.done() and time.monotonic() < stuck_until:
                time.sleep(0.01)  # the event loop does not turn meanwhile
            assert asking.done(), "nobody answered while the event loop was stuck"
            assert asking.result()[0]
