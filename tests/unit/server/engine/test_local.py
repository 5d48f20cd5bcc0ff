"""The in-process engine behind the seam: what unit tests and ``pratique release record`` use."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pratique_server.engine.local import LocalEngine, start_local_engine
from pratique_server.engine.protocol import (
    DeadlineExceededError,
    DuplicateRequestError,
    EngineDeadError,
    EngineError,
    EngineOverloadedError,
    ExecutionRequest,
    RequestAbortedError,
    RequestInvalidError,
)
from tests.unit.server.engine.makers import make_request, make_spec


@pytest.fixture
async def engine(tiny_model_dir: Path) -> AsyncIterator[LocalEngine]:
    engine = await start_local_engine(make_spec(tiny_model_dir))
    yield engine
    await engine.close()


async def collect(engine: LocalEngine, request: ExecutionRequest) -> list[int]:
    return [token_id async for event in engine.start(request) for token_id in event.token_ids]


async def test_requests_run_together_and_give_what_they_give_alone(engine: LocalEngine) -> None:
    alone = await collect(engine, make_request("alone"))
    together = await asyncio.gather(*(collect(engine, make_request(f"r{index}")) for index in range(4)))
    assert together == [alone] * 4
    assert (await engine.stats()).blocks_used == 0


async def test_closing_the_iterator_cancels(engine: LocalEngine) -> None:
    stream = engine.start(make_request(max_new_tokens=400))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    stats = await engine.stats()
    assert (stats.running, stats.blocks_used) == (0, 0)


async def test_cancel_ends_the_reader_and_frees_the_blocks(engine: LocalEngine) -> None:
    stream = engine.start(make_request(max_new_tokens=400))
    await anext(stream)
    await engine.cancel("r")
    assert (await engine.stats()).blocks_used == 0
    with pytest.raises(RequestAbortedError):
        await anext(stream)
    await engine.cancel("unknown")


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (make_request(prompt_ids=[10**6]), RequestInvalidError),
        (make_request(deadline=0.0), DeadlineExceededError),
        (make_request("live"), DuplicateRequestError),
    ],
)
async def test_refusals_come_with_the_first_event(
    engine: LocalEngine, request_: ExecutionRequest, error: type[EngineError]
) -> None:
    live = engine.start(make_request("live", max_new_tokens=300))
    await anext(live)
    with pytest.raises(error):
        await anext(engine.start(request_))
    await live.aclose()  # type: ignore[attr-defined]


async def test_draining_refuses_new_requests_and_waits_for_the_old(engine: LocalEngine) -> None:
    reader = asyncio.create_task(collect(engine, make_request(max_new_tokens=30)))
    await asyncio.sleep(0.01)
    await engine.drain(time.monotonic() + 10)
    assert reader.done() or len(await reader) == 30
    with pytest.raises(EngineOverloadedError, match="draining"):
        await anext(engine.start(make_request("late")))


async def test_a_step_that_fails_ends_every_stream(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm's lesson: an exception in the loop must become an error on every stream, never a silent hang."""

    def fail() -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(engine._engine, "step", fail)
    with pytest.raises(EngineDeadError, match="MemoryError: no memory"):
        await collect(engine, make_request())
    with pytest.raises(EngineDeadError):
        await collect(engine, make_request())
