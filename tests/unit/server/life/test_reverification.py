"""Idle re-verification: it waits for quiet, gives way at once, counts only wrong answers, and does what the policy says."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from pratique_contract.reasons import Reason
from pratique_contract.serving import ReverifySpec
from pratique_contract.verdict import Verdict, VerdictResult
from pratique_server.api.live import LiveRequests
from pratique_server.engine.protocol import EngineDeadError
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.holder import VerdictHolder
from pratique_server.life.idle import GaveWayError, IdleTime
from pratique_server.life.reverification import CONFIRM_SHARE, WHOLE_EVERY_ROUNDS, Reverifier
from pratique_server.metrics import Metrics

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WRONG = CheckFailedError(
    Reason.OUTPUT_MISMATCH, "Case count: output token 3 is 7 ' 9', 6 ' 4' was recorded", expected="6", observed="7"
)
PASSED = Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="Release abc proved", approved=True)


class EnoughError(Exception):
    """The test has seen enough rounds."""


@dataclass
class Rounds:
    """One outcome per round: None passes, an exception is raised. Ends the reverifier's loop when there is none left."""

    outcomes: list[Exception | None]
    slept: list[float] = field(default_factory=list)

    whole: list[bool] = field(default_factory=list)

    def steps(self, whole: bool) -> Sequence[Callable[[], Awaitable[object]]]:
        self.whole.append(whole)

        async def step() -> None:
            outcome = self.outcomes.pop(0)
            if outcome is not None:
                raise outcome

        return [step]

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if not self.outcomes:
            raise EnoughError


async def _run(
    rounds: Rounds, spec: ReverifySpec, metrics: Metrics | None = None, idle: IdleTime | None = None
) -> Verdict:
    holder = VerdictHolder()
    holder.set(PASSED)
    reverifier = Reverifier(
        spec,
        steps=rounds.steps,
        idle=idle or IdleTime(LiveRequests(), quiet_seconds=0),
        holder=holder,
        counter=(metrics or Metrics()).reverifications,
        now=lambda: NOW,
        jitter=lambda: 1.0,
        sleep=rounds.sleep,
    )
    with contextlib.suppress(EnoughError):
        await reverifier.run()
    return holder.current()


async def test_a_passed_round_leaves_the_verdict_and_its_time() -> None:
    verdict = await _run(Rounds([None]), ReverifySpec())
    assert verdict.reverification is not None
    assert (verdict.passed, verdict.message) == (True, PASSED.message)
    assert (verdict.reverification.result, verdict.reverification.failures) == (VerdictResult.PASS, 0)
    assert verdict.reverification.at == NOW


async def test_one_failed_round_stands_beside_the_verdict_and_is_confirmed_sooner() -> None:
    rounds = Rounds([WRONG])
    verdict = await _run(rounds, ReverifySpec(interval_seconds=600, failures=3))
    assert (verdict.passed, verdict.message) == (True, PASSED.message)
    assert verdict.reverification is not None
    assert (verdict.reverification.reason, verdict.reverification.failures) == (Reason.OUTPUT_MISMATCH, 1)
    assert rounds.slept == [600, 600 * CONFIRM_SHARE]


async def test_enough_failures_in_a_row_are_told_but_do_not_take_the_pod_out() -> None:
    """kserve#6259, vllm#36960: healthy to its probes while its answers are wrong. Report never costs the last ready pod."""
    verdict = await _run(Rounds([WRONG, WRONG, WRONG, WRONG]), ReverifySpec(failures=3, on_failure="Report"))
    assert verdict.passed
    assert verdict.message == f"Release abc proved; but since then 4 re-verifications in a row failed: {WRONG.message}"


async def test_enough_failures_in_a_row_take_the_pod_out_where_the_policy_says_so() -> None:
    rounds = Rounds([WRONG, WRONG, None])
    verdict = await _run(rounds, ReverifySpec(failures=2, on_failure="Unready"))
    assert (verdict.result, verdict.reason) == (VerdictResult.FAIL, Reason.OUTPUT_MISMATCH)
    assert verdict.message == f"After it was ready, 2 re-verifications in a row failed: {WRONG.message}"
    assert (verdict.expected, verdict.observed) == ("6", "7")
    assert rounds.outcomes == [None]  # a pod that is out is not asked again


async def test_a_passed_round_forgives_what_came_before() -> None:
    verdict = await _run(Rounds([WRONG, None, WRONG]), ReverifySpec(failures=2, on_failure="Unready"))
    assert verdict.passed
    assert verdict.reverification is not None
    assert verdict.reverification.failures == 1
    told = await _run(Rounds([WRONG, WRONG, None]), ReverifySpec(failures=2))
    assert told.message == PASSED.message


@pytest.mark.parametrize(
    "outcome",
    [
        TimeoutError(),
        EngineDeadError("The engine process is not running."),
        CheckFailedError(Reason.ENGINE_UNREACHABLE, "HTTP 503"),
        GaveWayError("a user"),
        ZeroDivisionError("a fault of ours"),
    ],
)
async def test_what_says_nothing_about_the_answers_is_no_failure(outcome: Exception) -> None:
    metrics = Metrics()
    verdict = await _run(Rounds([outcome] * 5), ReverifySpec(failures=1, on_failure="Unready"), metrics)
    assert verdict == PASSED
    assert 'result="fail"' not in metrics.exposition().decode()


async def test_what_keeps_users_waiting_runs_seldom_and_whenever_something_is_to_be_confirmed() -> None:
    """A fault that only the long prompt shows must not be forgiven by the short rounds between."""
    rounds = Rounds([None] * 6 + [WRONG, WRONG, None, None])
    await _run(rounds, ReverifySpec(failures=3))
    assert rounds.whole == [False] * 5 + [True, False, True, True, False]
    assert WHOLE_EVERY_ROUNDS == 6


async def test_a_round_that_was_cut_goes_on_where_it_was() -> None:
    """A pod that users leave alone for a moment now and then is proved piece by piece."""
    asked: list[str] = []
    cuts = iter([True, False, True, False, False])

    def case(name: str) -> Callable[[], Awaitable[object]]:
        async def step() -> None:
            asked.append(name)
            if next(cuts):
                raise GaveWayError("a user")

        return step

    rounds = Rounds([None] * 3)

    async def sleep(seconds: float) -> None:
        await rounds.sleep(seconds)
        rounds.outcomes.pop()

    holder = VerdictHolder()
    holder.set(PASSED)
    reverifier = Reverifier(
        ReverifySpec(interval_seconds=600),
        steps=lambda whole: [case("a"), case("b"), case("c")],
        idle=IdleTime(LiveRequests(), quiet_seconds=0),
        holder=holder,
        counter=Metrics().reverifications,
        jitter=lambda: 1.0,
        sleep=sleep,
    )
    with contextlib.suppress(EnoughError):
        await reverifier.run()
    assert asked == ["a", "a", "b", "b", "c"]
    assert rounds.slept == [600.0] * 4
    assert holder.current().reverification is not None


async def test_rounds_are_counted_by_result() -> None:
    metrics = Metrics()
    await _run(Rounds([None, WRONG, ZeroDivisionError(), None]), ReverifySpec(failures=2), metrics)
    lines = metrics.exposition().decode()
    assert 'pratique_reverifications_total{result="pass"} 2.0' in lines
    assert 'pratique_reverifications_total{result="fail"} 1.0' in lines
    assert 'pratique_reverifications_total{result="error"} 1.0' in lines


@pytest.mark.parametrize(
    ("fault", "result"),
    [
        (ZeroDivisionError(), "error"),
        (CheckFailedError(Reason.GATE_FAILED, "The gate's own request could not be sent"), "error"),
        (CheckFailedError(Reason.PROBE_TIMEOUT, "No answer in time"), "unanswered"),
        (CheckFailedError(Reason.ENGINE_UNREACHABLE, "No engine"), "unanswered"),
    ],
)
async def test_what_says_nothing_about_the_pod_never_takes_it_out(fault: Exception, result: str) -> None:
    metrics = Metrics()
    assert await _run(Rounds([fault] * 9), ReverifySpec(failures=1, on_failure="Unready"), metrics) == PASSED
    assert f'pratique_reverifications_total{{result="{result}"}} 9.0' in metrics.exposition().decode()


async def test_an_interval_of_zero_switches_it_off() -> None:
    rounds = Rounds([WRONG])
    assert await _run(rounds, ReverifySpec(interval_seconds=0)) == PASSED
    assert rounds.slept == []


async def test_work_waits_until_no_user_is_served_and_it_was_quiet() -> None:
    now, slept = [100.0], []
    live = LiveRequests(clock=lambda: now[0])

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    idle = IdleTime(live, quiet_seconds=2, clock=lambda: now[0], sleep=sleep)
    done: list[str] = []

    async def work() -> None:
        done.append("work")

    with live.serve_user():
        waiting = asyncio.create_task(idle.run(work))
        await asyncio.sleep(0.01)
        assert done == []
    await waiting
    assert (done, slept) == (["work"], [2.0])


async def test_work_gives_way_at_once_and_is_cancelled() -> None:
    live, cancelled = LiveRequests(), asyncio.Event()

    async def work() -> Any:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    running = asyncio.create_task(IdleTime(live, quiet_seconds=0).run(work))
    await asyncio.sleep(0.01)
    with live.serve_user():
        with pytest.raises(GaveWayError):
            await asyncio.wait_for(running, 1)
        assert cancelled.is_set()
