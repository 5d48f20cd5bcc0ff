"""How a workload test judges: ratios of medians over rounds, on observations made by hand."""

import pytest

from pratique_cli.errors import CliError
from pratique_cli.load import Observation, Planned, Tenant
from pratique_cli.review.workload import LIMITS, choose_limits, judge


def observe(tenant: str, *, slower: float = 1.0, error: str | None = None) -> Observation:
    planned = Planned(at=0.0, tenant=Tenant(name=tenant, rate=1.0), number=0, messages=(), max_tokens=4)
    times = [0.2 * slower + 0.1 * slower * n for n in range(4)]
    return Observation(
        planned=planned, tokens_at=times, ended_at=times[-1], output_tokens=4, finish_reason="length", error=error
    )


def rounds(*slowness: float) -> list[list[Observation]]:
    return [[observe("heavy", slower=slower), observe("light", slower=slower)] for slower in slowness]


def test_the_same_speed_passes_with_ratios_of_one() -> None:
    test = judge(rounds(1, 1), rounds(1, 1), dict(LIMITS)).test
    assert test.passed, test.message
    assert {name: value for name, value in test.measurements.items() if name.endswith("Ratio")} == dict.fromkeys(
        (
            "throughputRatio",
            "ttftP50Ratio",
            "ttftP95Ratio",
            "itlP50Ratio",
            "itlP95Ratio",
            "lightTtftP95Ratio",
            "fairnessRatio",
        ),
        1.0,
    )


@pytest.mark.req("R53")
def test_a_slower_candidate_fails_and_the_sentence_says_by_how_much() -> None:
    test = judge(rounds(1, 1), rounds(3, 3), dict(LIMITS)).test
    assert not test.passed
    assert "ttftP95Ratio is 3, at most 2 is allowed" in test.message
    assert test.measurements["throughputRatio"] == 0.33


def test_one_disturbed_round_does_not_decide() -> None:
    assert judge(rounds(1, 1, 1), rounds(1, 9, 1), dict(LIMITS)).test.passed


def test_an_error_of_the_candidate_fails() -> None:
    broken = [[observe("heavy"), observe("light", error="HTTP 429")]]
    test = judge(rounds(1), broken, dict(LIMITS)).test
    assert not test.passed
    assert "errorRate is 0.5" in test.message
    assert "lightTtftP95Ratio was not measured" in test.message


@pytest.mark.req("R53")
def test_a_starved_light_tenant_is_unfair() -> None:
    starving = [[observe("heavy"), observe("light", slower=20)]]
    test = judge(rounds(1), starving, dict(LIMITS)).test
    assert "fairnessRatio is" in test.message
    assert "lightTtftP95Ratio is 20" in test.message


def test_no_absolute_time_is_written_into_the_review() -> None:
    """The same review on another machine would say something else, and times say where it was made."""
    measured = judge(rounds(1), rounds(1), dict(LIMITS))
    assert set(measured.test.measurements) == {name[:-3] for name in LIMITS} | {"rounds", "requests"}
    assert measured.candidate["ttftMs"]["p50"] == 200.0


def test_limits_are_replaced_by_name_and_others_refused() -> None:
    assert choose_limits({"Workload.throughputRatioMin": 0.5, "SemanticParity.x": 1})["throughputRatioMin"] == 0.5
    with pytest.raises(CliError, match="no limit 'speed'"):
        choose_limits({"Workload.speed": 1})
