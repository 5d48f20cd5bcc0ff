"""The arithmetic of semantic parity: what counts as agreement, and which difference means something."""

import pytest

from pratique_server.review.limits import clear_margin
from pratique_server.review.parity import describe_parity, find_divergences, measure_parity
from tests.support.answers import make_answer


def measure(left, right, *, clear=1.0, by_text=False):
    found = find_divergences(left, right, clear_margin=clear, by_text=by_text)
    return measure_parity(left, right, found, by_text=by_text), found


def test_equal_answers_agree_wholly() -> None:
    figures, found = measure([make_answer("a"), make_answer("b", 9)], [make_answer("a"), make_answer("b", 9)])
    assert found == []
    assert figures["exactMatchRate"] == figures["tokenAgreement"] == 1.0
    assert "firstDivergenceMedian" not in figures
    assert describe_parity(figures, found, {}) == "every answer is equal, 100.0% of the ids agree before that"


def test_ids_count_up_to_the_first_difference_only() -> None:
    figures, (parted,) = measure(
        [make_answer("a", 1, 2, 3, 4), make_answer("b", 1, 2)], [make_answer("a", 1, 9, 3, 4), make_answer("b", 1, 2)]
    )
    assert (parted.name, parted.index, parted.margin) == ("a", 1, 2.0)
    assert figures["tokenAgreement"] == pytest.approx(3 / 6)
    assert (figures["exactMatchRate"], figures["firstDivergenceMedian"]) == (0.5, 1.0)


def test_a_near_tie_may_turn_and_a_clear_lead_may_not() -> None:
    """bf16 near-ties flip between correct engines; a clear choice that turns is another model."""
    left = [make_answer("tie", 1, 2, margins=(3.0, 0.1)), make_answer("clear", 1, 2, margins=(3.0, 1.1))]
    figures, found = measure(
        left, [make_answer("tie", 1, 3), make_answer("clear", 1, 3)], clear=clear_margin("FP32", "BF16")
    )
    assert [divergence.clear for divergence in found] == [False, True]
    assert figures["clearDivergenceRate"] == 0.5


def test_going_on_where_the_reference_ended_is_a_clear_difference() -> None:
    figures, (parted,) = measure([make_answer("a", 1, 2, stopped=True)], [make_answer("a", 1, 2, 3)])
    assert (parted.index, parted.margin, parted.clear) == (2, None, True)
    assert figures["tokenAgreement"] == 1.0
    assert figures["exactMatchRate"] == 0.0


def test_an_answer_that_became_empty_is_counted() -> None:
    figures, _ = measure(
        [make_answer("a", text="yes"), make_answer("b", text="")],
        [make_answer("a", 2, text=""), make_answer("b", text="")],
    )
    assert figures["emptyAnswers"] == 1


def test_different_tokenizers_are_compared_by_text() -> None:
    left, right = [make_answer("a", 1, 2, text="abcd")], [make_answer("a", 7, 8, 9, text="abxy")]
    figures, (parted,) = measure(left, right, by_text=True)
    assert (figures["comparedBy"], figures["tokenAgreement"], parted.clear, parted.margin) == ("text", 0.5, False, None)
