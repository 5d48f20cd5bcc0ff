"""Sends the golden cases again while the pod is idle: a process that was right when it started may begin to lie later (a broken
accelerator, a corrupted cache, a bug that needs hours).

Slow, with jitter, so that the pods of a service do not probe together. A user's request ends a round at once, and busy, slow or
unreachable is never wrong: only an answer that differs counts, and only ``failures`` of them in a row. What then happens is the
policy's: ``Report`` tells, ``Unready`` takes this pod out.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from prometheus_client import Counter

from pratique_contract.reasons import Reason
from pratique_contract.serving import ReverifySpec
from pratique_contract.verdict import Reverification, Verdict, VerdictResult
from pratique_server.engine.protocol import EngineError
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.holder import VerdictHolder
from pratique_server.life.idle import GaveWayError, IdleTime

JITTER: Final = 0.1
# A round that failed is confirmed sooner. One that was cut goes on after the whole interval: where users come every few seconds each
# attempt costs one of them a step of the engine, and then attempts have to be seldom.
CONFIRM_SHARE: Final = 0.1
# A step that is running cannot be cut, and a prefill of hundreds of tokens is the longest there is: cases that need one run in every
# n-th round only, and whenever something is to be confirmed.
WHOLE_EVERY_ROUNDS: Final = 6
STEP_SECONDS_MAX: Final = 120.0
# What says that the pod could not be asked, not that it answered wrongly.
UNANSWERED: Final = frozenset({Reason.ENGINE_UNREACHABLE, Reason.PROBE_TIMEOUT})
# Results of rounds that failed, and say nothing about the pod: nor does a gate that broke.
_SAYS_NOTHING: Final = {**dict.fromkeys(UNANSWERED, "unanswered"), Reason.GATE_FAILED: "error"}

Step = Callable[[], Awaitable[object]]

_log = logging.getLogger(__name__)


class Reverifier:
    """``steps`` gives the parts of one round, each of which raises ``CheckFailedError`` when the pod is wrong; its argument says whether
    the round is whole or leaves out what would keep a user waiting."""

    def __init__(
        self,
        spec: ReverifySpec,
        *,
        steps: Callable[[bool], Sequence[Step]],
        idle: IdleTime,
        holder: VerdictHolder,
        counter: Counter,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        jitter: Callable[[], float] = lambda: random.uniform(1 - JITTER, 1 + JITTER),  # noqa: S311 - spreads, hides nothing
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._spec = spec
        self._steps = steps
        self._idle = idle
        self._holder = holder
        self._counter = counter
        self._now = now
        self._jitter = jitter
        self._sleep = sleep
        self._failures = 0
        self._rounds = 0
        self._left: list[Step] = []

    async def run(self) -> None:
        """Until it is cancelled, or this pod has been taken out. The verdict must have passed."""
        if not self._spec.interval_seconds:
            return
        share = 1.0
        while self._holder.current().passed:
            await self._sleep(self._spec.interval_seconds * share * self._jitter())
            share = CONFIRM_SHARE if await self._run_round() == "fail" else 1.0

    async def _run_round(self) -> str:
        result, failure = "pass", None
        left = self._left or self._begin_round()
        self._left = []
        try:
            while left:
                await self._idle.run(partial(_in_time, left[0]))
                left.pop(0)
        except GaveWayError:
            result, self._left = "gave_way", left
        except (TimeoutError, EngineError) as error:
            result = "unanswered"
            _log.warning("Could not re-verify: %s", error or type(error).__name__)
        except CheckFailedError as error:
            result = _SAYS_NOTHING.get(error.reason, "fail")
            failure = error if result == "fail" else None
            _log.log(
                logging.WARNING if result == "unanswered" else logging.ERROR,
                "Re-verification failed: %s",
                error.message,
            )
        except Exception:  # noqa: BLE001 - a fault of ours says nothing about the pod, and the next round may find one
            result = "error"
            _log.exception("Could not finish a round of re-verification")
        self._counter.labels(result=result).inc()
        self._rounds += result == "pass"
        if result in ("pass", "fail"):
            self._conclude(failure)
        return result

    def _begin_round(self) -> list[Step]:
        whole = self._failures > 0 or self._rounds % WHOLE_EVERY_ROUNDS == WHOLE_EVERY_ROUNDS - 1
        return list(self._steps(whole))

    def _conclude(self, failure: CheckFailedError | None) -> None:
        if failure is None and self._failures:
            _log.warning("Re-verified after %d failed rounds", self._failures)
        self._failures = 0 if failure is None else self._failures + 1
        verdict = self._holder.current()
        told = conclude_round(verdict, failure, failures=self._failures, spec=self._spec, now=self._now())
        self._holder.set(told)
        if told.result is not verdict.result:
            _log.error("Took this pod out: %s", told.one_line(), extra={"fields": {"verdict": told.to_json_value()}})


def conclude_round(
    verdict: Verdict, failure: CheckFailedError | None, *, failures: int, spec: ReverifySpec, now: datetime
) -> Verdict:
    """The verdict after a round. Pure. A failed round alone only stands beside it; enough of them in a row are said in it."""
    seen = Reverification(
        result=VerdictResult.PASS if failure is None else VerdictResult.FAIL,
        reason=verdict.reason if failure is None else failure.reason,
        message="The golden cases came out as recorded" if failure is None else failure.message,
        failures=failures,
        at=now,
        evidence=() if failure is None else failure.evidence,
    )
    message = verdict.message.partition(_BUT)[0]
    if failure is None or failures < spec.failures:
        return verdict.model_copy(update={"reverification": seen, "message": message})
    sentence = f"{failures} re-verifications in a row failed: {failure.message}"
    if spec.on_failure == "Report":
        return verdict.model_copy(update={"reverification": seen, "message": f"{message}{_BUT}{sentence}"})
    return verdict.model_copy(
        update={
            "result": VerdictResult.FAIL,
            "reason": failure.reason,
            "message": f"After it was ready, {sentence}",
            "part": failure.part,
            "expected": failure.expected or verdict.expected,
            "observed": failure.observed or verdict.observed,
            "evidence": failure.evidence,
            "reverification": seen,
        }
    )


_BUT: Final = "; but since then "


async def _in_time(step: Step) -> None:
    """A pod that does not answer is somebody else's finding (the heartbeat's); here it may only not wait for ever."""
    async with asyncio.timeout(STEP_SECONDS_MAX):
        await step()
