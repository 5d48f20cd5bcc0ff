"""The engine core as a real process on real sockets, serving: every act leaves it whole and its blocks free.

One process for all tests here; each begins and ends with nothing live.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pratique_contract.serving import LimitsSpec
from pratique_server.engine.client import EngineClient, start_engine
from pratique_server.engine.protocol import (
    DeadlineExceededError,
    DuplicateRequestError,
    EngineOverloadedError,
    ExecutionRequest,
    RequestAbortedError,
    RequestInvalidError,
    SamplingRules,
    StepEvent,
)
from tests.integration.server.engine_client import LONG, blocks_back, collect, pid_of
from tests.unit.server.engine.makers import make_request, make_spec

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tiny_model_dir: Path) -> AsyncIterator[EngineClient]:
    """Four seats, a queue of four, and steps of four tokens so that prompts take many."""
    spec = make_spec(tiny_model_dir, max_num_seqs=4, max_batched_tokens=4, limits=LimitsSpec(max_queued=4))
    engine = await start_engine(spec)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(shared: EngineClient) -> AsyncIterator[EngineClient]:
    await blocks_back(shared)
    yield shared
    await blocks_back(shared)
    assert (await shared.stats()).epoch == 1, "the process was replaced"


@pytest.mark.req("R59")
async def test_identity_says_how_the_process_was_started(engine: EngineClient) -> None:
    facts = (await engine.identity()).runtime_facts
    assert (facts["threads"], facts["waitPolicy"], facts["execution"]) == (
        max(1, len(os.sched_getaffinity(0)) - 1),
        "PASSIVE",
        "packed",
    )


async def test_requests_at_once_give_what_each_gives_alone(engine: EngineClient) -> None:
    alone = await collect(engine, make_request("alone"))
    assert await asyncio.gather(*(collect(engine, make_request(f"r{n}")) for n in range(8))) == [alone] * 8


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (make_request("oov", prompt_ids=[571]), RequestInvalidError),
        (make_request("negative", prompt_ids=[-1]), RequestInvalidError),
        (make_request("empty", prompt_ids=[]), RequestInvalidError),
        (make_request("seed", sampling=SamplingRules(seed=2**70)), RequestInvalidError),
        (make_request("late", deadline=1.0), DeadlineExceededError),
    ],
)
async def test_a_refused_request_costs_nothing(
    engine: EngineClient, request_: ExecutionRequest, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await collect(engine, request_)


@pytest.mark.req("R24")
async def test_a_live_id_is_refused_and_a_cancelled_one_may_be_used_again_at_once(engine: EngineClient) -> None:
    expected = await collect(engine, make_request())
    live = engine.start(make_request(max_new_tokens=LONG))
    await anext(live)
    with pytest.raises(DuplicateRequestError):
        await collect(engine, make_request())
    await engine.cancel("r")
    with pytest.raises(RequestAbortedError):
        await anext(live)
    assert await collect(engine, make_request()) == expected


@pytest.mark.req("R85", "R87", "R96")
async def test_blocks_come_back_on_finish_disconnect_and_deadline(engine: EngineClient) -> None:
    """llama.cpp#24496: generation goes on after the client has closed."""
    await collect(engine, make_request("finish"))
    await blocks_back(engine)

    stream = engine.start(make_request("disconnect", max_new_tokens=LONG))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await blocks_back(engine)

    reader = asyncio.create_task(collect(engine, make_request("cancelled-task", max_new_tokens=LONG)))
    await asyncio.sleep(0.05)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await blocks_back(engine)

    with pytest.raises(DeadlineExceededError):
        await collect(engine, make_request("deadline", max_new_tokens=LONG, deadline=time.monotonic() + 0.05))
    await blocks_back(engine)
    steps = (await engine.stats()).steps
    await asyncio.sleep(0.4)
    assert (await engine.stats()).steps == steps, "the engine still computes for nobody"


async def test_a_prompt_is_cancelled_in_the_middle_of_its_prefill(engine: EngineClient) -> None:
    """llama.cpp#15232: prefill could not be cancelled."""
    steps = (await engine.stats()).steps
    stream = engine.start(make_request(prompt_ids=[3] * 500, max_new_tokens=4))
    waiting = asyncio.ensure_future(anext(stream))
    while (await engine.stats()).blocks_used == 0:
        await asyncio.sleep(0.005)
    await engine.cancel("r")
    with pytest.raises(RequestAbortedError):
        await waiting
    await blocks_back(engine, seconds=1)
    assert (await engine.stats()).steps - steps < 125, "the whole prompt was computed"


@pytest.mark.req("R22")
async def test_a_deadline_ends_a_request_that_still_waits_in_the_queue(engine: EngineClient) -> None:
    readers = [asyncio.create_task(collect(engine, make_request(f"busy{n}", max_new_tokens=LONG))) for n in range(4)]
    while (await engine.stats()).running < 4:
        await asyncio.sleep(0.01)
    begun = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        await collect(engine, make_request("queued", deadline=begun + 0.1))
    assert time.monotonic() - begun < 1.0
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


@pytest.mark.req("R16", "R17", "R19")
async def test_overload_is_refused_and_those_inside_finish(engine: EngineClient) -> None:
    async def attempt(number: int) -> int | str:
        try:
            return len(await collect(engine, make_request(f"r{number}", max_new_tokens=40)))
        except EngineOverloadedError as error:
            return str(error)

    attempts = [asyncio.create_task(attempt(number)) for number in range(30)]
    await asyncio.sleep(0)
    gate = make_request("gate", reserved=True, max_new_tokens=3)
    assert len(await collect(engine, gate)) == 3, "the gate's own request passes a full queue"
    results = await asyncio.gather(*attempts)
    refused = [result for result in results if isinstance(result, str)]
    assert [result for result in results if isinstance(result, int)] == [40] * 8
    assert len(refused) == 22
    assert all("queue is full" in result for result in refused)


@pytest.mark.req("R84")
async def test_a_reader_that_pauses_neither_loses_tokens_nor_holds_the_engine_up(engine: EngineClient) -> None:
    expected = await collect(engine, make_request("reference", max_new_tokens=100))
    slow = engine.start(make_request("slow", max_new_tokens=100))
    events: list[StepEvent] = [await anext(slow)]
    assert await collect(engine, make_request("quick", max_new_tokens=100)) == expected
    await asyncio.sleep(0.2)
    events += [event async for event in slow]
    assert [token_id for event in events for token_id in event.token_ids] == expected
    assert len(events) < 40, "what waited was merged"


@pytest.mark.req("R22")
async def test_a_deadline_holds_even_while_the_engine_is_frozen(engine: EngineClient) -> None:
    os.kill(pid_of(engine), signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            await collect(engine, make_request(deadline=begun + 0.2))
        assert time.monotonic() - begun < 1.0
        assert (await engine.stats()).heartbeat_age_seconds > 0.1
    finally:
        os.kill(pid_of(engine), signal.SIGCONT)
