"""Workload: both releases served on 127.0.0.1 and given the same traffic of a heavy and a light tenant, in turns.

Both servers run all the while and only one is loaded at a time, reference and candidate changing places from round to round, so that
whatever else the machine does meets both alike. What counts are ratios within this one run; absolute times are facts of this machine, are
shown, and are not written into the review.
"""

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pratique_cli.errors import EXIT_USAGE, CliError
from pratique_cli.load import Observation, Planned, Tenant, make_trace, measure, run_trace
from pratique_cli.load.measures import e2e_ms, look_up
from pratique_cli.review.serving import Served, serve_both
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.review import ReviewTest, find_exceeded
from pratique_contract.serving import ServingSpec

# How many requests of each tenant are in flight on average while the reference is loaded: busy, but with no growing queue.
CONCURRENCY: Final = 1.0
RATE_MAX: Final = 8.0
SEED: Final = 20_26
RATIO_DIGITS: Final = 2

# One server against itself, on two cores with eight processes waiting for each, gave ratios from 0.86 to 1.44 (docs/review.md).
LIMITS: Final[dict[str, float]] = {
    "throughputRatioMin": 0.8,
    "ttftP50RatioMax": 1.5,
    "ttftP95RatioMax": 2.0,
    "itlP50RatioMax": 1.5,
    "itlP95RatioMax": 2.0,
    "lightTtftP95RatioMax": 2.0,
    "fairnessRatioMin": 0.85,
    "errorRateMax": 0.0,
}
# Words of a prompt and tokens of an answer, at most a fraction of what the context holds.
HEAVY_WORDS, HEAVY_TOKENS = 160, 48
LIGHT_WORDS, LIGHT_TOKENS = 12, 16

Say = Callable[[str], None]
Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long to load: in each round as many seconds as give every tenant ``requests_min``, within the bounds."""

    rounds: int = 4
    seconds_min: float = 8.0
    seconds_max: float = 60.0
    requests_min: int = 6

    def seconds(self, rate: float) -> float:
        return min(self.seconds_max, max(self.seconds_min, self.requests_min / rate))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The test's result, and both servers' own figures for a person's eyes."""

    test: ReviewTest
    reference: Figures
    candidate: Figures


def run_workload(
    specs: tuple[ServingSpec, ServingSpec],
    manifests: tuple[ReleaseManifest, ReleaseManifest],
    overrides: Mapping[str, float],
    say: Say,
    *,
    pace: Pace | None = None,
) -> Measured:
    """Serve, load, compare. Raises ``CliError`` when a server does not come up or is not the release under review."""
    limits = choose_limits(overrides)
    with serve_both(specs, manifests, say) as (reference, candidate):
        return asyncio.run(_compare(reference, candidate, limits, say, pace or Pace()))


def choose_limits(overrides: Mapping[str, float]) -> dict[str, float]:
    """The limits with those of ``Workload.name`` replaced; raises ``CliError`` for a name that is none."""
    given = {key.partition(".")[2]: value for key, value in overrides.items() if key.partition(".")[0] == "Workload"}
    unknown = sorted(set(given) - set(LIMITS))
    if unknown:
        raise CliError(f"Workload has no limit {unknown[0]!r}; it has {', '.join(sorted(LIMITS))}", code=EXIT_USAGE)
    return {**LIMITS, **given}


async def _compare(reference: Served, candidate: Served, limits: dict[str, float], say: Say, pace: Pace) -> Measured:
    tenants = await _plan(reference, candidate)
    seconds = pace.seconds(min(tenant.rate for tenant in tenants))
    rate = sum(tenant.rate for tenant in tenants)
    say(f"Loading both in turns: {2 * pace.rounds} times {seconds:.0f} s, {rate:.1f} requests a second")
    seen: dict[str, list[list[Observation]]] = {"reference": [], "candidate": []}
    for number in range(pace.rounds):
        trace = make_trace(tenants, seconds=seconds, seed=SEED + number)
        order = [("reference", reference), ("candidate", candidate)]
        for name, served in order if number % 2 == 0 else reversed(order):
            seen[name].append(await run_trace(trace, served.target, run=f"review-{number}-{name}"))
    return judge(seen["reference"], seen["candidate"], limits)


async def _plan(reference: Served, candidate: Served) -> tuple[Tenant, ...]:
    """Rates at which the reference is busy and keeps up, from how long it takes over one request of each tenant alone."""
    context = min(reference.context, candidate.context)
    words = min(HEAVY_WORDS, context // 8)
    heavy = Tenant(name="heavy", rate=1.0, prompt_words=(words // 2, words), max_tokens=_lengths(HEAVY_TOKENS, context))
    light = Tenant(name="light", rate=1.0, prompt_words=(4, LIGHT_WORDS), max_tokens=_lengths(LIGHT_TOKENS, context))
    for served in (candidate, reference):  # the reference last: its figures are the ones that count
        alone = {tenant.name: await _time_alone(tenant, served) for tenant in (heavy, light)}
    rates = {name: min(RATE_MAX, CONCURRENCY / taken) for name, taken in alone.items()}
    return tuple(
        Tenant(name=t.name, rate=rates[t.name], prompt_words=t.prompt_words, max_tokens=t.max_tokens)
        for t in (heavy, light)
    )


def _lengths(tokens: int, context: int) -> tuple[int, int]:
    most = max(2, min(tokens, context // 8))
    return max(1, most // 2), most


async def _time_alone(tenant: Tenant, served: Served) -> float:
    """Seconds of the quicker of two requests, one after the other: the first warms the server up."""
    trace = make_trace(
        (
            Tenant(
                name=tenant.name,
                rate=1.0,
                prompt_words=tenant.prompt_words,
                max_tokens=tenant.max_tokens,
                arrival="Constant",
            ),
        ),
        seconds=1.5,
        seed=SEED,
    )
    taken = []
    for item in trace[:2]:
        (seen,) = await run_trace([_at_once(item)], served.target, run=f"alone-{item.number}")
        if seen.error is not None:
            raise CliError(f"The {served.name} does not answer the load driver: {seen.error}")
        taken.append(e2e_ms(seen) / 1000)
    return max(0.001, min(taken))


def _at_once(planned: Planned) -> Planned:
    return Planned(
        at=0.0, tenant=planned.tenant, number=planned.number, messages=planned.messages, max_tokens=planned.max_tokens
    )


def judge(
    reference: Sequence[Sequence[Observation]], candidate: Sequence[Sequence[Observation]], limits: dict[str, float]
) -> Measured:
    """Ratios of the medians over rounds (candidate's over reference's), and the candidate's own error rate. Pure."""
    left, right = ([measure(seen) for seen in rounds] for rounds in (reference, candidate))
    all_left, all_right = (measure([seen for one in rounds for seen in one]) for rounds in (reference, candidate))
    figures: dict[str, float | int | str] = {
        "rounds": len(left),
        "requests": all_right["requests"],
        "errorRate": all_right["errorRate"],
    }
    for name, path in _RATIOS.items():
        ratio = _ratio(left, right, path)
        if ratio is not None:
            figures[name] = ratio
    exceeded = find_exceeded(figures, limits)
    parts = [f"{name.removesuffix('Ratio')} ×{figures[name]:g}" for name in _RATIOS if name in figures]
    message = "; ".join([*exceeded, f"candidate over reference: {', '.join(parts)}"])
    test = ReviewTest.model_validate(
        {"kind": "Workload", "passed": not exceeded, "message": message, "measurements": figures, "limits": limits}
    )
    return Measured(test=test, reference=all_left, candidate=all_right)


# Figure of the review: where it lies in the measures of one round.
_RATIOS: Final[dict[str, tuple[str, ...]]] = {
    "throughputRatio": ("tokensPerSecond",),
    "ttftP50Ratio": ("ttftMs", "p50"),
    "ttftP95Ratio": ("ttftMs", "p95"),
    "itlP50Ratio": ("itlMs", "p50"),
    "itlP95Ratio": ("itlMs", "p95"),
    "lightTtftP95Ratio": ("tenants", "light", "ttftMs", "p95"),
    "fairnessRatio": ("fairness",),
}


def _ratio(left: Sequence[Figures], right: Sequence[Figures], path: Sequence[str]) -> float | None:
    """None when a side has no such figure in any round, or it is zero in the reference."""
    below, above = (_median(rounds, path) for rounds in (left, right))
    return None if not below or above is None else round(above / below, RATIO_DIGITS)


def _median(rounds: Sequence[Figures], path: Sequence[str]) -> float | None:
    values = [value for figures in rounds if (value := look_up(figures, path)) is not None]
    return statistics.median(values) if values else None
