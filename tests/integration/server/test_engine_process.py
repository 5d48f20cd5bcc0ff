"""The engine core as a real process on real sockets. Serving: every act leaves it whole and its blocks free. Then killed, frozen, closed,
orphaned, and lost while it loads: every stream ends, nothing is left behind.

One process for all tests that can share it, and its successors for those that lose it.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from pratique_contract.serving import LimitsSpec
from pratique_server.engine import client as client_module
from pratique_server.engine.client import EngineClient, start_engine
from pratique_server.engine.protocol import (
    DeadlineExceededError,
    DuplicateRequestError,
    EngineDeadError,
    EngineError,
    EngineOverloadedError,
    ExecutionRequest,
    RequestAbortedError,
    RequestInvalidError,
    SamplingRules,
    StepEvent,
)
from tests.integration.server.engine_client import LONG, blocks_back, collect, eventually, is_running, pid_of
from tests.unit.server.engine.makers import make_request, make_spec

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module", autouse=True)
def private_temp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the sockets go; nothing may be left there. Not ``tmp_path``: a socket's path may have 107 bytes at most."""
    tmp_path_factory.getbasetemp()  # pytest settles its own folder before ours is in the way
    folder = Path(tempfile.mkdtemp(prefix="pq-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder
    left = list(folder.iterdir())
    shutil.rmtree(folder)
    assert left == [], "sockets or files were left behind"


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(private_temp: Path) -> Iterator[None]:
    """But the shared engine's folder, of whichever epoch it is."""
    before = len(list(private_temp.iterdir()))
    yield
    assert len(list(private_temp.iterdir())) <= max(before, 1), "sockets or files were left behind"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(private_temp: Path, tiny_model_dir: Path) -> AsyncIterator[EngineClient]:
    """Four seats, a queue of four, and steps of four tokens so that prompts take many. Whoever loses its process starts another one; the
    last test that needs it closes it."""
    spec = make_spec(tiny_model_dir, max_num_seqs=4, max_batched_tokens=4, limits=LimitsSpec(max_queued=4))
    engine = await start_engine(spec)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def whole(engine: EngineClient) -> AsyncIterator[EngineClient]:
    """For tests that begin and end with nothing live, in the first process."""
    await blocks_back(engine)
    yield engine
    await blocks_back(engine)
    assert (await engine.stats()).epoch == 1, "the process was replaced"


@pytest.mark.req("R59")
async def test_identity_says_how_the_process_was_started(whole: EngineClient) -> None:
    facts = (await whole.identity()).runtime_facts
    assert (facts["threads"], facts["waitPolicy"], facts["execution"]) == (
        max(1, len(os.sched_getaffinity(0)) - 1),
        "PASSIVE",
        "packed",
    )


async def test_requests_at_once_give_what_each_gives_alone(whole: EngineClient) -> None:
    alone = await collect(whole, make_request("alone"))
    assert await asyncio.gather(*(collect(whole, make_request(f"r{n}")) for n in range(8))) == [alone] * 8


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
    whole: EngineClient, request_: ExecutionRequest, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await collect(whole, request_)


@pytest.mark.req("R24")
async def test_a_live_id_is_refused_and_a_cancelled_one_may_be_used_again_at_once(whole: EngineClient) -> None:
    expected = await collect(whole, make_request())
    live = whole.start(make_request(max_new_tokens=LONG))
    await anext(live)
    with pytest.raises(DuplicateRequestError):
        await collect(whole, make_request())
    await whole.cancel("r")
    with pytest.raises(RequestAbortedError):
        await anext(live)
    assert await collect(whole, make_request()) == expected


@pytest.mark.req("R85", "R87", "R96")
async def test_blocks_come_back_on_finish_disconnect_and_deadline(whole: EngineClient) -> None:
    """llama.cpp#24496: generation goes on after the client has closed."""
    await collect(whole, make_request("finish"))
    await blocks_back(whole)

    stream = whole.start(make_request("disconnect", max_new_tokens=LONG))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await blocks_back(whole)

    reader = asyncio.create_task(collect(whole, make_request("cancelled-task", max_new_tokens=LONG)))
    await asyncio.sleep(0.05)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await blocks_back(whole)

    with pytest.raises(DeadlineExceededError):
        await collect(whole, make_request("deadline", max_new_tokens=LONG, deadline=time.monotonic() + 0.05))
    await blocks_back(whole)
    # The step that was under way when the last request ended may end after the blocks are back, however slow this machine is.
    steps = [(await whole.stats()).steps]
    for _ in range(3):
        await asyncio.sleep(0.4)
        steps.append((await whole.stats()).steps)
    assert steps[-1] == steps[-2] <= steps[0] + 1, f"the engine still computes for nobody: {steps}"


async def test_a_prompt_is_cancelled_in_the_middle_of_its_prefill(whole: EngineClient) -> None:
    """llama.cpp#15232: prefill could not be cancelled."""
    steps = (await whole.stats()).steps
    stream = whole.start(make_request(prompt_ids=[3] * 500, max_new_tokens=4))
    waiting = asyncio.ensure_future(anext(stream))
    while (await whole.stats()).blocks_used == 0:
        await asyncio.sleep(0.005)
    await whole.cancel("r")
    with pytest.raises(RequestAbortedError):
        await waiting
    await blocks_back(whole, seconds=1)
    assert (await whole.stats()).steps - steps < 125, "the whole prompt was computed"


@pytest.mark.req("R22")
async def test_a_deadline_ends_a_request_that_still_waits_in_the_queue(whole: EngineClient) -> None:
    readers = [asyncio.create_task(collect(whole, make_request(f"busy{n}", max_new_tokens=LONG))) for n in range(4)]
    while (await whole.stats()).running < 4:
        await asyncio.sleep(0.01)
    begun = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        await collect(whole, make_request("queued", deadline=begun + 0.1))
    assert time.monotonic() - begun < 1.0
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


@pytest.mark.req("R16", "R17", "R19")
async def test_overload_is_refused_and_those_inside_finish(whole: EngineClient) -> None:
    async def attempt(number: int) -> int | str:
        try:
            return len(await collect(whole, make_request(f"r{number}", max_new_tokens=40)))
        except EngineOverloadedError as error:
            return str(error)

    attempts = [asyncio.create_task(attempt(number)) for number in range(30)]
    await asyncio.sleep(0)
    gate = make_request("gate", reserved=True, max_new_tokens=3)
    assert len(await collect(whole, gate)) == 3, "the gate's own request passes a full queue"
    results = await asyncio.gather(*attempts)
    refused = [result for result in results if isinstance(result, str)]
    assert [result for result in results if isinstance(result, int)] == [40] * 8
    assert len(refused) == 22
    assert all("queue is full" in result for result in refused)


@pytest.mark.req("R84")
async def test_a_reader_that_pauses_neither_loses_tokens_nor_holds_the_engine_up(whole: EngineClient) -> None:
    expected = await collect(whole, make_request("reference", max_new_tokens=100))
    slow = whole.start(make_request("slow", max_new_tokens=100))
    events: list[StepEvent] = [await anext(slow)]
    assert await collect(whole, make_request("quick", max_new_tokens=100)) == expected
    await asyncio.sleep(0.2)
    events += [event async for event in slow]
    assert [token_id for event in events for token_id in event.token_ids] == expected
    assert len(events) < 40, "what waited was merged"


@pytest.mark.req("R22")
async def test_a_deadline_holds_even_while_the_engine_is_frozen(whole: EngineClient) -> None:
    os.kill(pid_of(whole), signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            await collect(whole, make_request(deadline=begun + 0.2))
        assert time.monotonic() - begun < 1.0
        assert (await whole.stats()).heartbeat_age_seconds > 0.1
    finally:
        os.kill(pid_of(whole), signal.SIGCONT)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(engine: EngineClient) -> list[int]:
    """What it answers, in any epoch."""
    return await collect(engine, make_request("reference", max_new_tokens=LONG))


async def read_until_dead(engine: EngineClient, name: str, received: list[int]) -> EngineError | None:
    try:
        async for event in engine.start(make_request(name, max_new_tokens=LONG)):
            received += event.token_ids
    except EngineError as error:
        return error
    return None


@pytest.mark.req("R60", "R106")
async def test_a_killed_engine_ends_its_streams_and_a_new_epoch_serves(
    engine: EngineClient, expected: list[int]
) -> None:
    """No token appears twice after a restart."""
    epoch = (await engine.stats()).epoch
    received: list[list[int]] = [[], []]
    readers = [asyncio.create_task(read_until_dead(engine, f"r{n}", ids)) for n, ids in enumerate(received)]
    await eventually(lambda: all(received))
    os.kill(pid_of(engine), signal.SIGKILL)
    errors = await asyncio.gather(*readers)
    assert [type(error) for error in errors] == [EngineDeadError] * 2
    assert "SIGKILL" in str(errors[0])
    for ids in received:
        assert ids == expected[: len(ids)]
        assert len(ids) < LONG

    await engine.wait_dead()
    age = (await engine.stats()).heartbeat_age_seconds
    await asyncio.sleep(0.1)
    assert (await engine.stats()).heartbeat_age_seconds >= age + 0.1
    with pytest.raises(EngineDeadError):
        await engine.identity()
    with pytest.raises(EngineDeadError):
        await collect(engine, make_request("meanwhile"))

    identity = await engine.restart()
    assert identity == await engine.identity()
    assert await collect(engine, make_request("r0", max_new_tokens=LONG)) == expected
    stats = await engine.stats()
    assert (stats.epoch, stats.heartbeat_age_seconds < 1) == (epoch + 1, True)


@pytest.mark.req("R60", "R106")
async def test_a_frozen_engine_ends_its_streams_and_a_new_epoch_serves(
    engine: EngineClient, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm#36960: alive and healthy to the outside, dead inside."""
    monkeypatch.setattr(client_module, "SILENCE_SECONDS_MAX", 1.0)
    ids: list[int] = []
    reader = asyncio.create_task(read_until_dead(engine, "frozen", ids))
    await eventually(lambda: bool(ids))
    frozen = pid_of(engine)
    os.kill(frozen, signal.SIGSTOP)
    assert "reported nothing" in str(await reader)
    assert (await engine.stats()).heartbeat_age_seconds > 1.0
    monkeypatch.setattr(client_module, "SILENCE_SECONDS_MAX", 60.0)
    monkeypatch.setattr(client_module, "STOP_SECONDS", 0.2)
    await engine.restart()
    assert not is_running(frozen)
    assert await collect(engine, make_request("again", max_new_tokens=LONG)) == expected


async def test_draining_lets_the_live_finish_and_closing_ends_the_rest_and_the_process(engine: EngineClient) -> None:
    """The last one with this engine."""
    pid = pid_of(engine)
    short = asyncio.create_task(collect(engine, make_request("short", max_new_tokens=20)))
    ids: list[int] = []
    long = asyncio.create_task(read_until_dead(engine, "long", ids))
    await eventually(lambda: bool(ids))
    await engine.drain(time.monotonic() + 0.2)
    with pytest.raises(EngineOverloadedError, match="draining"):
        await collect(engine, make_request("too-late"))
    assert len(await short) == 20
    begun = time.monotonic()
    await engine.close()
    await engine.close()
    assert isinstance(await long, EngineDeadError | None)
    assert not is_running(pid)
    assert time.monotonic() - begun < 4


async def test_no_engine_outlives_its_parent(tiny_model_dir: Path, tmp_path: Path, private_temp: Path) -> None:
    """Nor does its folder. The parent is another process, killed without a chance to say anything."""
    (tmp_path / "spec.json").write_text(make_spec(tiny_model_dir).model_dump_json(by_alias=True))
    program = (
        "import asyncio, sys\n"
        "from pratique_contract import ServingSpec\n"
        "from pratique_server.engine.client import start_engine\n"
        "async def main():\n"
        "    engine = await start_engine(ServingSpec.model_validate_json(open(sys.argv[1]).read()))\n"
        "    print(engine._core.process.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "TMPDIR": str(private_temp)}
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "spec.json")], stdout=subprocess.PIPE, env=environment, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        core = int(await asyncio.to_thread(parent.stdout.readline))
    assert is_running(core)
    parent.kill()
    parent.wait()
    await eventually(lambda: not is_running(core), seconds=5)


async def test_a_core_that_dies_while_it_loads_is_named(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the kernel kills it for memory: an error with the signal's name, never a wait without end."""
    original = client_module.launch_core

    async def launch_and_kill(*args: object, **kwargs: object) -> object:
        core = await original(*args, **kwargs)  # type: ignore[arg-type]
        core.process.kill()
        return core

    monkeypatch.setattr(client_module, "launch_core", launch_and_kill)
    with pytest.raises(EngineDeadError, match="ended while it loaded: SIGKILL"):
        await start_engine(make_spec(tiny_model_dir))


async def test_a_cancelled_start_leaves_no_process(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, pids = client_module.launch_core, []

    async def launch(*args: object, **kwargs: object) -> object:
        core = await original(*args, **kwargs)  # type: ignore[arg-type]
        pids.append(core.process.pid)
        return core

    monkeypatch.setattr(client_module, "launch_core", launch)
    starting = asyncio.create_task(start_engine(make_spec(tiny_model_dir)))
    await eventually(lambda: bool(pids))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not is_running(pids[0])
