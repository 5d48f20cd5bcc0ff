"""The queue: one pass per service at a time, none lost, failures back off, nothing blocks the others."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from pratique_operator import queue as queue_module
from pratique_operator.errors import UnavailableError
from pratique_operator.kinds import Key
from pratique_operator.queue import SPACING_SECONDS, ReconcileQueue
from pratique_operator.reconcile import Outcome

A, B = Key("ns", "a"), Key("ns", "b")
DONE = Outcome(0, None)


async def running(work: Callable[[Key], Awaitable[Outcome]], seconds: float, *keys: Key, workers: int = 4) -> None:
    queue = ReconcileQueue(work, workers=workers)
    task = asyncio.create_task(queue.run())
    for key in keys:
        queue.trigger(key)
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_burst_of_triggers_is_one_pass() -> None:
    """dynamo#13353: quick successive updates."""
    passes: list[Key] = []

    async def work(key: Key) -> Outcome:
        passes.append(key)
        return DONE

    await running(work, 0.2, A, A, A, B, A)
    assert sorted(map(str, passes)) == ["ns/a", "ns/b"]


async def test_trickle_of_triggers_shares_passes_and_the_last_one_gets_its_own() -> None:
    """A rollout reports in dozens of steps; a pass for each of them was a dozen calls each, nearly all for nothing."""
    passes: list[float] = []
    clock = asyncio.get_running_loop().time

    async def work(_key: Key) -> Outcome:
        passes.append(clock())
        return Outcome(0, 60.0)

    queue = ReconcileQueue(work, workers=4)
    task = asyncio.create_task(queue.run())
    began = clock()
    for _ in range(30):
        queue.trigger(A)
        await asyncio.sleep(0.03)
    ended = clock()
    await asyncio.sleep(2 * SPACING_SECONDS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert passes[0] - began < SPACING_SECONDS
    assert all(later - earlier > SPACING_SECONDS - 0.05 for earlier, later in pairwise(passes))
    assert 2 <= len(passes) <= (ended - began) / SPACING_SECONDS + 2
    assert passes[-1] >= ended - 0.03


async def test_trigger_during_a_pass_runs_once_more_and_never_in_parallel() -> None:
    active = most = passes = 0
    queue: ReconcileQueue

    async def work(key: Key) -> Outcome:
        nonlocal active, most, passes
        active, passes = active + 1, passes + 1
        most = max(most, active)
        if passes == 1:
            for _ in range(5):
                queue.trigger(key)
        await asyncio.sleep(0.1)
        active -= 1
        return DONE

    queue = ReconcileQueue(work, workers=4)
    task = asyncio.create_task(queue.run())
    queue.trigger(A)
    await asyncio.sleep(0.6)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (passes, most) == (2, 1)


async def test_failing_service_is_retried_and_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    passes: list[str] = []

    async def work(key: Key) -> Outcome:
        passes.append(key.name)
        if key == A and passes.count("a") < 2:
            raise UnavailableError("the API server did not answer")
        return DONE

    await running(work, 0.9, A, B)
    assert (passes.count("a"), passes.count("b")) == (2, 1)
    assert "the API server did not answer" in caplog.text


async def test_unexpected_error_is_logged_with_its_trace_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    passes = 0

    async def work(_key: Key) -> Outcome:
        nonlocal passes
        passes += 1
        raise RuntimeError("a bug")

    await running(work, 0.9, A)
    assert passes == 2
    assert "RuntimeError: a bug" in caplog.text


async def test_requeue_runs_again_without_a_trigger() -> None:
    passes = 0

    async def work(_key: Key) -> Outcome:
        nonlocal passes
        passes += 1
        return Outcome(0, 0.05)

    await running(work, 0.5, A)
    assert passes >= 4


async def test_workers_are_bounded() -> None:
    active = most = 0

    async def work(_key: Key) -> Outcome:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.05)
        active -= 1
        return DONE

    await running(work, 0.5, *(Key("ns", str(n)) for n in range(8)), workers=2)
    assert most == 2


async def test_heartbeat_is_fresh_while_it_runs() -> None:
    async def work(_key: Key) -> Outcome:
        return DONE

    queue = ReconcileQueue(work, workers=1)
    task = asyncio.create_task(queue.run())
    await asyncio.sleep(0.05)
    assert queue.heartbeat_age_seconds < 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("rounds", range(5))
async def test_stop_that_meets_a_trigger_still_stops(rounds: int) -> None:
    """However far a trigger has got through the event loop when the stop comes. Python 3.11's ``wait_for`` forgets a cancellation
    that meets its result; the operator then went on after SIGTERM until it was killed."""

    async def work(_key: Key) -> Outcome:
        return DONE

    queue = ReconcileQueue(work, workers=1)
    task = asyncio.create_task(queue.run())
    await asyncio.sleep(0.01)
    queue.trigger(A)
    for _ in range(rounds):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=1)
    for _ in range(3):  # whatever came of it, leave nothing behind
        task.cancel()
        await asyncio.sleep(0.01)
    assert done


async def test_stop_waits_for_a_pass_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_module, "STOP_SECONDS", 0.2)
    ended: list[Key] = []
    release = asyncio.Event()

    async def work(key: Key) -> Outcome:
        await (asyncio.sleep(0.1) if key == A else release.wait())
        ended.append(key)
        return DONE

    started = asyncio.get_running_loop().time()
    await running(work, 0.1, A, B)
    assert asyncio.get_running_loop().time() - started < 2
    assert ended == [A]
    assert "Pass was not over 0 s after the stop: ns/b" in caplog.text
    release.set()
    await asyncio.sleep(0.01)
