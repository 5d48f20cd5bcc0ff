"""A whole serving process on real sockets, in a thread of the test process or as a process of its own."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import openai

from pratique_contract import ServingSpec
from pratique_contract.certificates import must_verify
from pratique_server.config import ApiLimits, EngineLimits
from pratique_server.engine.client import start_engine
from pratique_server.engine.local import start_local_engine
from pratique_server.engine.protocol import Engine, EngineError, EngineIdentity
from pratique_server.life.loading import ServedEngine, StartEngine
from pratique_server.serve import ServingProcess

# For a machine on which ten others wait for each core. A file that starts processes sets its timeout above this.
READY_SECONDS_MAX = 120.0


def make_spec(model_dir: Path, **changes: Any) -> ServingSpec:
    values: dict[str, Any] = {
        "served_model_name": "tiny",
        "model": {"path": str(model_dir), "uri": f"file://{model_dir}"},
        "release": {"policy": "TrustFirst"},
        "host": "127.0.0.1",
        "api_port": 0,
        "management_port": 0,
        "drain": {"pre_stop_seconds": 0.3, "deadline_seconds": 20},
    }
    return ServingSpec.model_validate({**values, **changes})


class EngineInThisProcess:
    """The real engine without a process of its own: nothing to lose, and no second of imports for each test."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def wait_dead(self) -> None:
        await asyncio.Event().wait()

    async def restart(self) -> EngineIdentity:
        raise EngineError("There is no process to restart")


def served_in_this_process(engine: Engine) -> ServedEngine:
    """An engine as the serving process wants it."""
    served: Any = EngineInThisProcess(engine)
    return cast(ServedEngine, served)


async def start_in_this_process(spec: ServingSpec) -> ServedEngine:
    return served_in_this_process(await start_local_engine(spec))


class Running:
    """What a test asks a running server, wherever it runs."""

    def __init__(self, api_port: int, management_port: int) -> None:
        self.api_port = api_port
        self.api_url = f"http://127.0.0.1:{api_port}"
        management = f"http://127.0.0.1:{management_port}"
        self.management = httpx.Client(base_url=management, timeout=5, trust_env=False, verify=must_verify(management))

    def openai(self, key: str = "none", **options: Any) -> openai.AsyncOpenAI:
        client = openai.DefaultAsyncHttpxClient(trust_env=False, verify=must_verify(self.api_url))
        return openai.AsyncOpenAI(
            base_url=f"{self.api_url}/v1", api_key=key, max_retries=0, timeout=30, http_client=client, **options
        )

    def http(self, **options: Any) -> httpx.AsyncClient:
        """For what the official client does not do."""
        return httpx.AsyncClient(base_url=self.api_url, trust_env=False, verify=must_verify(self.api_url), **options)

    def post(self, path: str, body: Any) -> httpx.Response:
        """One request to the API port, from a client of its own."""
        with httpx.Client(trust_env=False, verify=must_verify(self.api_url), timeout=30) as client:
            return client.post(f"{self.api_url}{path}", json=body)

    def probe(self, name: str) -> tuple[int, str]:
        response = self.management.get(f"/{name}")
        return response.status_code, response.text.splitlines()[0]

    def stats(self) -> dict[str, Any]:
        engine: dict[str, Any] = self.management.get("/stats").json()["engine"]
        return engine

    def verdict(self) -> dict[str, Any]:
        value: dict[str, Any] = self.management.get("/verdict").json()
        return value

    def wait_ready(self, *, seconds: float = READY_SECONDS_MAX) -> None:
        wait_until(lambda: self._answers("readyz") == 200, seconds=seconds, why=lambda: str(self.verdict()))

    def wait_verdict(self) -> dict[str, Any]:
        wait_until(lambda: self.verdict()["result"] != "Pending", seconds=READY_SECONDS_MAX)
        return self.verdict()

    def wait_idle(self, *, seconds: float = 3.0) -> None:
        """The engine is back where it was: nothing runs, waits or holds a block."""
        wait_until(self._is_idle, seconds=seconds, why=lambda: str(self.stats()))

    def _is_idle(self) -> bool:
        stats = self.stats()
        counts = stats["blocks_free"] + stats["blocks_cached"] + stats["blocks_used"]
        return not (stats["running"] or stats["waiting"] or stats["blocks_used"]) and counts == stats["blocks_total"]

    def _answers(self, name: str) -> int | None:
        try:
            return self.probe(name)[0]
        except httpx.HTTPError:
            return None


def wait_until(condition: Callable[[], bool], *, seconds: float, why: Callable[[], str] = lambda: "") -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {why()}"
        time.sleep(0.05)


@contextmanager
def serving(
    spec: ServingSpec,
    *,
    api_limits: ApiLimits | None = None,
    engine_limits: EngineLimits | None = None,
    start_engine: StartEngine = start_engine,
    **more: Any,
) -> Iterator[tuple[Running, ServingProcess]]:
    """Serve in a thread of this process; the test may look inside."""
    process = ServingProcess(
        spec, api_limits=api_limits, engine_limits=engine_limits, start_engine=start_engine, **more
    )
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(asyncio.run(process.run())), name="serving")
    thread.start()
    running = Running(process.api_port, process.management_port)
    try:
        yield running, process
    finally:
        wait_until(lambda: process.loop is not None, seconds=5)
        loop = process.loop
        assert loop is not None
        if thread.is_alive():
            loop.call_soon_threadsafe(lambda: process.stop(hurry=True))
        thread.join(20)
        running.management.close()
    assert not thread.is_alive()


SCRIPT = "import sys; from pathlib import Path; from pratique_server.config import load_serving_spec; "
SCRIPT += "from pratique_server.serve import run; sys.exit(run(load_serving_spec(Path(sys.argv[1]))))"


@contextmanager
def serving_process(
    spec: ServingSpec, folder: Path, *, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[Running, "subprocess.Popen[bytes]", Path]]:
    """Serve in a process of its own, as a container does. The ports in the spec must be fixed. Yields the log file too."""
    document, log = folder / "serving.json", folder / "log.jsonl"
    document.write_text(spec.model_dump_json(by_alias=True))
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(document)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    running = Running(spec.api_port, spec.management_port)
    try:
        yield running, child, log
    finally:
        running.management.close()
        if child.poll() is None:
            child.kill()
        child.wait(10)
