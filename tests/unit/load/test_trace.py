"""The trace: the same seed gives the same work, and each arrival process keeps its rate."""

import dataclasses
import itertools
import statistics

import pytest

from pratique_cli.load import Tenant, make_trace

LIGHT = Tenant(name="light", rate=5.0)
HEAVY = Tenant(name="heavy", rate=2.0, prompt_words=(100, 200), max_tokens=(64, 64))


@pytest.mark.req("R121")
def test_the_same_requests_come_quicker_at_a_higher_rate() -> None:
    """One trace at several rates: what is asked stays the same, only the gaps shrink."""
    slow = make_trace((LIGHT,), seconds=20, seed=7)
    fast = make_trace((dataclasses.replace(LIGHT, rate=10.0),), seconds=10, seed=7)
    assert [(item.messages, item.max_tokens) for item in fast] == [(item.messages, item.max_tokens) for item in slow]
    assert [item.at * 2 for item in fast] == pytest.approx([item.at for item in slow])


def test_the_same_seed_is_the_same_trace_and_another_is_not() -> None:
    first = make_trace((LIGHT, HEAVY), seconds=20, seed=7)
    assert first == make_trace((LIGHT, HEAVY), seconds=20, seed=7)
    assert first != make_trace((LIGHT, HEAVY), seconds=20, seed=8)


def test_one_tenant_sends_the_same_whoever_else_does() -> None:
    alone = make_trace((LIGHT,), seconds=20, seed=7)
    together = make_trace((LIGHT, HEAVY), seconds=20, seed=7)
    assert [item for item in together if item.tenant is LIGHT] == list(alone)


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    trace = make_trace((LIGHT,), seconds=2000, seed=1)
    gaps = [right.at - left.at for left, right in itertools.pairwise(trace)]
    assert statistics.mean(gaps) == pytest.approx(1 / 5, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(1 / 5, rel=0.05)


def test_a_constant_rate_is_evenly_spaced_from_the_start() -> None:
    trace = make_trace((dataclasses.replace(LIGHT, arrival="Constant"),), seconds=2, seed=1)
    assert [item.at for item in trace] == pytest.approx([n / 5 for n in range(10)])


def test_lengths_stay_in_their_ranges_and_times_in_order() -> None:
    trace = make_trace((LIGHT, HEAVY), seconds=60, seed=3)
    assert [item.at for item in trace] == sorted(item.at for item in trace)
    assert all(0 <= item.at < 60 for item in trace)
    assert {item.max_tokens for item in trace if item.tenant is HEAVY} == {64}
    assert all(16 <= item.max_tokens <= 32 for item in trace if item.tenant is LIGHT)


@pytest.mark.parametrize("wrong", [{"seconds": 0.0}, {"seconds": float("nan")}, {"seconds": 1e9}])
def test_an_impossible_trace_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="trace"):
        make_trace((LIGHT,), seed=0, **wrong)
