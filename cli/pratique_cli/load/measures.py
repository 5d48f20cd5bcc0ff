"""From observations to figures. Pure; times in milliseconds, always as percentiles with the number of samples behind them.

* TTFT: from the planned time of sending to the first text. E2E: from the planned time to the end.
* ITL: between successive pieces of text of one answer, all answers together.
* TPOT = (E2E − TTFT) / (output tokens − 1), one per answer of two tokens or more.
* Throughput: output tokens (requests) of answers that ended well, per second from the first planned request to the last end.
* Goodput: requests per second that ended well within every limit of the SLO.
* Fairness: Jain's index (Jain, Chiu and Hawe 1984) (Σx)² / (n Σx²) over tenants, x being the mean of output tokens per second of E2E
  that the tenant's answers got: 1 when all get the same, 1/n when one gets everything. A tenant without an answer has x = 0.
* ``sendDelay``: how late the client itself was; figures of a run in which it is not small say little about the server.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pratique_cli.load.client import Observation

SHARES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
DECIMALS: Final = 3


@dataclass(frozen=True, kw_only=True)
class Slo:
    """Limits that an answer has to meet, each when it is given."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


def percentiles(values: Iterable[float]) -> dict[str, float | int]:
    """Nearest rank: a value that was seen, never one between two. Only the count when there is none."""
    ordered = sorted(values)
    if not ordered:
        return {"samples": 0}
    found = {name: _round(ordered[max(0, math.ceil(share * len(ordered)) - 1)]) for name, share in SHARES.items()}
    return {"samples": len(ordered), **found, "max": _round(ordered[-1])}


def jain(shares: Sequence[float]) -> float | None:
    """Jain's index; None when nobody got anything."""
    squares = sum(share * share for share in shares)
    return None if not squares else sum(shares) ** 2 / (len(shares) * squares)


def measure(observations: Sequence[Observation], *, slo: Slo | None = None) -> dict[str, Any]:
    """Everything of the module's docstring, over all requests and by tenant."""
    limits = slo or Slo()
    tenants = sorted({seen.planned.tenant.name for seen in observations})
    by_tenant = {name: [seen for seen in observations if seen.planned.tenant.name == name] for name in tenants}
    span = _span(observations)
    index = jain([_experienced_rate(seen) for seen in by_tenant.values()])
    return {
        **_figures(observations, span, limits),
        "fairness": None if index is None else _round(index),
        "slo": {"ttftMs": limits.ttft_ms, "tpotMs": limits.tpot_ms, "e2eMs": limits.e2e_ms},
        "tenants": {name: _figures(seen, span, limits) for name, seen in by_tenant.items()},
    }


def _figures(observations: Sequence[Observation], span: float, slo: Slo) -> dict[str, Any]:
    good = [seen for seen in observations if seen.error is None]
    tokens = sum(seen.output_tokens or 0 for seen in good)
    errors: dict[str, int] = {}
    for seen in observations:
        if seen.error is not None:
            errors[seen.error] = errors.get(seen.error, 0) + 1
    return {
        "requests": len(observations),
        "errors": dict(sorted(errors.items())),
        "errorRate": _round((len(observations) - len(good)) / len(observations)) if observations else 0.0,
        "outputTokens": tokens,
        "tokensPerSecond": _round(tokens / span) if span else 0.0,
        "promptTokensPerSecond": _round(sum(seen.prompt_tokens or 0 for seen in good) / span) if span else 0.0,
        "requestsPerSecond": _round(len(good) / span) if span else 0.0,
        "goodput": _round(sum(_meets(seen, slo) for seen in good) / span) if span else 0.0,
        "ttftMs": percentiles(value for seen in good if (value := ttft_ms(seen)) is not None),
        "itlMs": percentiles(gap for seen in good for gap in gaps_ms(seen)),
        "tpotMs": percentiles(value for seen in good if (value := tpot_ms(seen)) is not None),
        "e2eMs": percentiles(e2e_ms(seen) for seen in good),
        "sendDelayMs": percentiles((seen.sent_at - seen.planned.at) * 1000 for seen in observations),
    }


def look_up(figures: Mapping[str, Any], path: Sequence[str]) -> float | None:
    """The number at a path of keys (``("ttftMs", "p95")``), or None where there is none."""
    found: Any = figures
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) else None


def ttft_ms(seen: Observation) -> float | None:
    """None when no text came."""
    return (seen.tokens_at[0] - seen.planned.at) * 1000 if seen.tokens_at else None


def e2e_ms(seen: Observation) -> float:
    return (seen.ended_at - seen.planned.at) * 1000


def gaps_ms(seen: Observation) -> list[float]:
    return [(right - left) * 1000 for left, right in pairwise(seen.tokens_at)]


def tpot_ms(seen: Observation) -> float | None:
    """None for an answer of one token, or one whose tokens the server did not count."""
    first = ttft_ms(seen)
    if first is None or seen.output_tokens is None or seen.output_tokens < 2:
        return None
    return (e2e_ms(seen) - first) / (seen.output_tokens - 1)


def _meets(seen: Observation, slo: Slo) -> bool:
    """A figure that an answer does not have (TPOT of a single token) is within its limit; no text at all is not."""
    first, each = ttft_ms(seen), tpot_ms(seen)
    within_first = slo.ttft_ms is None or (first is not None and first <= slo.ttft_ms)
    within_each = slo.tpot_ms is None or each is None or each <= slo.tpot_ms
    return within_first and within_each and (slo.e2e_ms is None or e2e_ms(seen) <= slo.e2e_ms)


def _experienced_rate(observations: Sequence[Observation]) -> float:
    rates = [
        (seen.output_tokens or 0) / (e2e_ms(seen) / 1000)
        for seen in observations
        if seen.error is None and e2e_ms(seen) > 0
    ]
    return sum(rates) / len(rates) if rates else 0.0


def _span(observations: Sequence[Observation]) -> float:
    if not observations:
        return 0.0
    return max(seen.ended_at for seen in observations) - min(seen.planned.at for seen in observations)


def _round(value: float) -> float:
    return round(value, DECIMALS)
