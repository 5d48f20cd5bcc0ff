"""The arithmetic of a load run, on observations made by hand."""

from typing import Any

import pytest

from pratique_cli.load import Observation, Planned, Slo, Tenant, jain, measure, percentiles


def observe(tenant: str = "light", at: float = 0.0, **fields: Any) -> Observation:
    """An answer of four tokens: sent on time, first text after 1 s, then one every 100 ms."""
    planned = Planned(at=at, tenant=Tenant(name=tenant, rate=1.0), number=0, messages=(), max_tokens=4)
    defaults: dict[str, Any] = {
        "sent_at": at,
        "tokens_at": [at + 1.0, at + 1.1, at + 1.2, at + 1.3],
        "ended_at": at + 1.3,
        "output_tokens": 4,
        "finish_reason": "length",
    }
    return Observation(planned=planned, **{**defaults, **fields})


@pytest.mark.req("R116")
def test_ttft_itl_tpot_and_e2e_are_told_apart() -> None:
    figures = measure([observe()])
    assert figures["ttftMs"]["p50"] == pytest.approx(1000)
    assert figures["itlMs"] == {"samples": 3, **dict.fromkeys(("p50", "p90", "p95", "p99", "max"), 100.0)}
    assert figures["tpotMs"]["p50"] == pytest.approx(100)
    assert figures["e2eMs"]["p50"] == pytest.approx(1300)


@pytest.mark.req("R123")
def test_latency_counts_from_the_planned_time_though_the_client_was_late() -> None:
    """No coordinated omission: a request that could not leave in time has waited."""
    late = observe(sent_at=5.0, tokens_at=[5.5], ended_at=5.5, output_tokens=1)
    figures = measure([late])
    assert figures["ttftMs"]["p50"] == 5500
    assert figures["sendDelayMs"]["p50"] == 5000
    assert figures["tpotMs"] == {"samples": 0}


def test_throughput_is_over_the_time_from_the_first_request_to_the_last_end() -> None:
    figures = measure([observe(at=1.0, prompt_tokens=10), observe(at=3.7, prompt_tokens=30)])
    assert figures["promptTokensPerSecond"] == pytest.approx(40 / 4, rel=1e-3)
    assert figures["tokensPerSecond"] == pytest.approx(8 / 4, rel=1e-3)
    assert figures["requestsPerSecond"] == pytest.approx(2 / 4, rel=1e-3)


@pytest.mark.req("R119")
def test_goodput_counts_only_what_meets_every_limit() -> None:
    slow_start = observe(at=0.0, tokens_at=[2.0, 2.1], ended_at=2.1)
    slow_tokens = observe(at=0.0, tokens_at=[0.5, 2.0], ended_at=2.0)
    slo = Slo(ttft_ms=1500, tpot_ms=200)
    figures = measure([observe(), slow_start, slow_tokens], slo=slo)
    assert figures["goodput"] == pytest.approx(1 / 2.1, rel=1e-3)
    assert measure([observe(), slow_start, slow_tokens])["goodput"] == pytest.approx(3 / 2.1, rel=1e-3)


def test_a_failed_request_is_an_error_and_in_no_latency() -> None:
    failed = observe(error="HTTP 429: queue_full", tokens_at=[], output_tokens=None, ended_at=60.0)
    figures = measure([observe(), failed])
    assert (figures["errorRate"], figures["errors"]) == (0.5, {"HTTP 429: queue_full": 1})
    assert figures["e2eMs"]["samples"] == 1


@pytest.mark.parametrize(
    ("shares", "index"), [([1, 1, 1], 1.0), ([3, 0, 0], 1 / 3), ([2, 1], 0.9), ([0, 0], None), ([], None)]
)
def test_jains_index(shares: list[float], index: float | None) -> None:
    assert jain(shares) == (None if index is None else pytest.approx(index))


def test_a_tenant_that_gets_nothing_makes_a_run_unfair() -> None:
    starved = observe("heavy", error="no end within 120 s", tokens_at=[], output_tokens=None)
    assert measure([observe(), observe("heavy")])["fairness"] == 1.0
    assert measure([observe(), starved])["fairness"] == 0.5
    assert measure([observe(), starved])["tenants"]["heavy"]["errorRate"] == 1.0


def test_a_percentile_is_a_value_that_was_seen() -> None:
    found = percentiles(float(n) for n in range(1, 101))
    assert found == {"samples": 100, "p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert percentiles([]) == {"samples": 0}


def test_nothing_sent_is_no_division_by_zero() -> None:
    assert measure([])["tokensPerSecond"] == 0.0
