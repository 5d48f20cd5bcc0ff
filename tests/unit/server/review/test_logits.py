"""The arithmetic of the logit comparison, against values worked out by hand."""

import math

import pytest
import torch

from pratique_server.review.capture import fit_in_memory
from pratique_server.review.logits import describe_logits, measure_logits, percentile
from tests.support.answers import make_answer

VOCABULARY = 12


def rows(*logits: list[float]) -> torch.Tensor:
    """Positions over a vocabulary of 12 in which all other ids are out of reach."""
    return torch.tensor([[*row, *([-60.0] * (VOCABULARY - len(row)))] for row in logits])


def test_the_same_logits_have_no_divergence_and_agree_everywhere() -> None:
    logits = [torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(0))]
    # A constant added to every logit is the same distribution.
    figures = measure_logits(logits, [logits[0] + 5.0], [make_answer("a", 1, 2, 3)])
    assert figures["klMean"] == pytest.approx(0, abs=1e-6)
    assert (figures["top1Agreement"], figures["top10Agreement"], figures["positions"]) == (1.0, 1.0, 3)


def test_kl_is_of_the_candidate_from_the_reference() -> None:
    """P = (3/4, 1/4), Q = (1/2, 1/2): Σ P ln(P/Q), not the other way round."""
    left, right = rows([math.log(3.0), 0.0]), rows([0.0, 0.0])
    figures = measure_logits([left], [right], [make_answer("a", 0)])
    assert figures["klMean"] == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-3)
    assert figures["logprobDelta"] == pytest.approx(math.log(1.5), rel=1e-3)


def test_another_most_likely_id_is_a_top_1_difference() -> None:
    figures = measure_logits([rows([2.0, 0.0], [2.0, 0.0])], [rows([2.0, 0.0], [0.0, 2.0])], [make_answer("a", 0, 0)])
    assert figures["top1Agreement"] == 0.5


def test_what_is_no_number_is_counted_and_spoils_no_mean() -> None:
    left, right = rows([1.0, 0.0], [1.0, 0.0]), rows([1.0, 0.0], [math.nan, 0.0])
    figures = measure_logits([left], [right], [make_answer("a", 0, 0)])
    assert (figures["notFinite"], figures["positions"], figures["klMean"]) == (1, 2, 0.0)
    nothing = measure_logits([left[:1]], [right[1:]], [make_answer("a", 0)])
    assert nothing == {"positions": 1, "notFinite": 1}
    assert "none of 1 positions" in describe_logits(nothing)


@pytest.mark.parametrize(("share", "value"), [(0.99, 99), (0.5, 50), (1.0, 100), (0.001, 1)])
def test_a_percentile_is_a_value_that_was_seen(share: float, value: int) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], share) == value


def test_as_many_answers_are_scored_as_fit_in_memory_and_at_least_one() -> None:
    answers = [make_answer(str(number)) for number in range(5)]  # four ids each
    row = 4 * 100
    assert [len(fit_in_memory(answers, vocab_size=100, bytes_max=row * ids)) for ids in (1, 4, 8, 11, 12, 99)] == [
        1, 1, 2, 2, 3, 5,
    ]  # fmt: skip
