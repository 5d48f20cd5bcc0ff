"""What the tests of the engine process share: reading streams, waiting for blocks, looking at the process."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from pratique_server.engine.client import EngineClient
from pratique_server.engine.protocol import Engine, ExecutionRequest

# Tokens of a request that is still running whenever a test looks.
LONG = 400


def pid_of(engine: EngineClient) -> int:
    assert engine._core is not None
    return engine._core.process.pid


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def eventually(condition: Callable[[], bool], *, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.02)


async def collect(engine: Engine, request: ExecutionRequest) -> list[int]:
    return [token_id async for event in engine.start(request) for token_id in event.token_ids]


async def blocks_back(engine: EngineClient, *, seconds: float = 5) -> None:
    """Wait until nothing runs, nothing waits and no block is used."""
    deadline = time.monotonic() + seconds
    while (stats := await engine.stats()).blocks_used or stats.running or stats.waiting:
        assert time.monotonic() < deadline, stats
        await asyncio.sleep(0.01)
