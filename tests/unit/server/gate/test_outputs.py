"""Golden comparison on another device or build: tolerance, and what a margin excuses."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pratique_contract.golden import GOLDEN_STEPS_MIN, LOGPROB_TOLERANCE, Usage
from pratique_contract.reasons import Reason
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.outputs import check_golden, nearest_output, require_enough
from pratique_server.gate.sse import SseReader
from pratique_server.gate.stream import ContentPiece, StreamReport
from tests.support.gates import Script, ScriptedTokenizer, sse
from tests.support.releases import make_case, make_digest, make_output

TOLERANCE = LOGPROB_TOLERANCE["BF16"]
ELSEWHERE = {"dtype": "BF16", "device_class": "cuda-sm90", "engine_build": make_digest("other build")}


def _report(ids: tuple[int, ...], logprobs: tuple[float, ...], text: str = "ab") -> StreamReport:
    return StreamReport(
        text=text,
        pieces=(ContentPiece(text=text, ids_seen=len(ids)),),
        ids=ids,
        prompt_ids=(5, 6),
        logprobs=logprobs,
        finish_reason="stop",
        usage=Usage(prompt_tokens=2, completion_tokens=len(ids)),
        events=("role", "content", "finish", "usage", "done"),
        system_fingerprint="sha256:x",
        model="tiny",
    )


def _reason(report: StreamReport, *, margins: tuple[float, ...] = (2.0, 2.0, 2.0)) -> Reason | None:
    case = make_case(outputs=(make_output(dtype="BF16", margins=margins),))
    try:
        check_golden(report, case, decode=ScriptedTokenizer().decode, **ELSEWHERE)
    except CheckFailedError as error:
        return error.reason
    return None


@given(st.lists(st.floats(-TOLERANCE * 0.99, TOLERANCE * 0.99), min_size=3, max_size=3))
def test_log_probabilities_within_the_tolerance_pass(errors: list[float]) -> None:
    logprobs = tuple(base + error for base, error in zip((-0.1, -0.2, -0.3), errors, strict=True))
    assert _reason(_report((10, 11, 2), logprobs)) is None


@pytest.mark.parametrize("value", [-0.2 - 1.1 * TOLERANCE, -0.2 + 1.1 * TOLERANCE, math.nan, -math.inf])
def test_a_log_probability_out_of_tolerance_fails(value: float) -> None:
    assert _reason(_report((10, 11, 2), (-0.1, value, -0.3))) is Reason.OUTPUT_MISMATCH


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ((10, 12, 2), "output token 1 is 12 'c', 11 'b' was recorded, after 'a'"),
        ((12, 11, 2), "output token 0 is 12 'c', 10 'a' was recorded, at the very beginning"),
    ],
)
def test_the_first_differing_token_is_told_with_what_stands_before_it(ids: tuple[int, ...], sentence: str) -> None:
    """An index means nothing to whoever reads ``kubectl describe``."""
    case = make_case(outputs=(make_output(dtype="BF16", margins=(2.0, 2.0, 2.0)),))
    with pytest.raises(CheckFailedError) as caught:
        check_golden(_report(ids, (-0.1, -0.2, -0.3)), case, decode=ScriptedTokenizer().decode, **ELSEWHERE)
    assert caught.value.message == f"Case greeting: {sentence}"


def test_another_id_where_the_margin_was_clear_fails() -> None:
    assert _reason(_report((10, 12, 2), (-0.1, -0.2, -0.3), "ac")) is Reason.OUTPUT_MISMATCH


def test_another_id_at_a_near_tie_ends_the_comparison() -> None:
    """facts: bf16 near-ties flip between correct engines; what follows is another continuation."""
    report = _report((10, 12, 12, 12, 2), (-0.1, -0.9, -4.0, -4.0, -4.0), "accc")
    assert _reason(report, margins=(2.0, 3.9 * TOLERANCE, 2.0)) is None


def test_cases_of_which_too_little_can_be_compared_do_not_pass() -> None:
    """A record whose every lead is small excuses any answer from its first token on: together they prove nothing."""
    case = make_case(outputs=(make_output(dtype="BF16", margins=(3.9 * TOLERANCE, 2.0, 2.0)),))
    decode = ScriptedTokenizer().decode
    turned = _report((12, 12, 2), (-0.4, -0.2, -0.3), "cc")
    compared = sum(check_golden(turned, case, decode=decode, **ELSEWHERE) for _ in range(3))
    with pytest.raises(CheckFailedError, match="Only 0 recorded output tokens could be compared on cuda-sm90 in BF16"):
        require_enough(compared, dtype="BF16", device_class="cuda-sm90")
    require_enough(GOLDEN_STEPS_MIN, dtype="BF16", device_class="cuda-sm90")


def test_a_choice_that_was_turned_to_an_unlikely_token_fails() -> None:
    """Rounding turns a choice between two that are nearly as likely; a token far from both is another model."""
    near_tie = (2.0, 3.9 * TOLERANCE, 2.0)
    for logprob in (-0.2 - 4.1 * TOLERANCE, -8.0, math.nan):
        assert _reason(_report((10, 12, 2), (-0.1, logprob, -0.3), "ac"), margins=near_tie) is Reason.OUTPUT_MISMATCH


def test_an_answer_that_stops_at_a_near_tie_without_a_stop_token_fails() -> None:
    assert _reason(_report((10,), (-0.1,), "a"), margins=(2.0, 3.9 * TOLERANCE, 2.0)) is Reason.OUTPUT_MISMATCH


def test_a_difference_before_the_near_tie_still_fails() -> None:
    report = _report((12, 12, 2), (-0.1, -0.2, -0.3), "cc")
    assert _reason(report, margins=(2.0, 3.9 * TOLERANCE, 2.0)) is Reason.OUTPUT_MISMATCH


def test_an_answer_that_is_too_short_or_too_long_fails() -> None:
    assert _reason(_report((10, 11), (-0.1, -0.2))) is Reason.OUTPUT_MISMATCH
    assert _reason(_report((10, 11, 2, 2), (-0.1, -0.2, -0.3, -0.3))) is Reason.OUTPUT_MISMATCH


def test_the_nearest_output_is_of_the_same_dtype_before_the_same_device() -> None:
    same_dtype = make_output(dtype="BF16", device_class="cpu")
    same_device = make_output(dtype="FP32", device_class="cuda-sm90")
    both = make_output(dtype="BF16", device_class="cuda-sm90")
    case = make_case(outputs=(same_device, same_dtype))
    assert nearest_output(case, dtype="BF16", device_class="cuda-sm90", engine_build="x") == same_dtype
    assert (
        nearest_output(make_case(outputs=(same_dtype, both)), dtype="BF16", device_class="cuda-sm90", engine_build="x")
        == both
    )


BODY = b": keep-alive\n\n" + b"".join(sse(*Script("sha256:x").good()))


@given(st.lists(st.integers(1, len(BODY) - 1), max_size=12))
def test_the_splitting_of_a_body_into_chunks_does_not_change_its_events(cuts: list[int]) -> None:
    reader = SseReader()
    edges = [0, *sorted(cuts), len(BODY)]
    events = [event for start, end in itertools.pairwise(edges) for event in reader.feed(BODY[start:end])]
    reader.close()
    assert events == SseReader().feed(BODY)
    assert len(events) == 6
