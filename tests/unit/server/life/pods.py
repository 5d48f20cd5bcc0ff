"""A whole serving process in the test's own event loop, over real sockets, with a scripted engine that can die, come back and lie."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from pratique_contract import ServingSpec
from pratique_server.artifacts.files import LoadedFile
from pratique_server.config import EngineLimits
from pratique_server.engine.protocol import EngineDeadError, EngineIdentity, EngineStats, ExecutionRequest, StepEvent
from pratique_server.serve import ServingProcess
from tests.unit.server.scripted import ScriptedEngine, Step, events_of, idle_stats

QUICK = EngineLimits(
    poll_seconds=0.01, restart_backoff_seconds=0.01, restarts_max=2, recorded_poll_seconds=0.02, gate_again_seconds=0.02
)
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}


@dataclass
class LivingEngine(ScriptedEngine):
    """A scripted engine that can die and be restarted. ``load_errors`` are raised by the next starts, first to last."""

    load_errors: list[Exception] = field(default_factory=list)
    epoch: int = 1
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False
    heartbeat_age: float = 0.0
    # From the n-th of the gate's requests on the answer is another one.
    lies_after: int | None = None
    asked_by_gate: int = 0

    def start(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
        return self._play_until_dead(request)

    async def _play_until_dead(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
        # The gate asks for few tokens and must get a finish within them.
        script = self.script
        if request.reserved:
            self.asked_by_gate += 1
            lies = self.lies_after is not None and self.asked_by_gate > self.lies_after
            script = events_of_gate(request, first=70 if lies else 67)
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


def events_of_gate(request: ExecutionRequest, *, first: int = 67) -> list[Step]:
    """A plain answer in ids of the tiny tokenizer that ends by itself with its stop token."""
    return [
        *(StepEvent(request_id="", token_ids=[token]) for token in range(first, first + 3)),
        StepEvent(request_id="", token_ids=[request.stop_token_ids[0]], finish=events_of("a")[-1].finish),
    ]


@dataclass
class Pod:
    """A serving process and what can be seen of it from outside."""

    process: ServingProcess
    engine: LivingEngine
    running: "asyncio.Task[int]"

    async def get(self, name: str) -> tuple[int, str]:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.process.management_port}", verify=False, trust_env=False
        ) as client:
            response = await client.get(f"/{name}")
        return response.status_code, response.text.strip()

    async def ask_record(self, body: bytes = b"") -> tuple[int, Any]:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.process.management_port}", verify=False, trust_env=False
        ) as client:
            response = await client.post("/record", content=body)
        return response.status_code, response.json()

    async def chat(self, **changes: Any) -> httpx.Response:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.process.api_port}", verify=False, trust_env=False
        ) as client:
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
    recorded: Path | None = None,
    engine: LivingEngine | None = None,
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
    engine = engine or LivingEngine(script or events_of("ok"), load_errors=load_errors or [])

    async def start_engine(_: ServingSpec) -> LivingEngine:
        engine._load()
        return engine

    process = ServingProcess(
        ServingSpec.model_validate({**values, **spec}),
        start_engine=start_engine,
        engine_limits=engine_limits,
        recorded_path=recorded or Path("/nonexistent/record.json"),
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
