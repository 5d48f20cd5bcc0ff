"""Which limits a review holds the figures against, and prompts of one's own."""

import json

import pytest

from pratique_contract.manifest import QuantizationPart
from pratique_contract.review import ReviewTest
from pratique_server.review.errors import ReviewError
from pratique_server.review.limits import choose_limits, clear_margin, numeric_change
from pratique_server.review.prompts import BUILT_IN, parse_prompts
from tests.support.releases import make_manifest


def part(method: str = "None", dtype: str = "BF16", **config: object) -> QuantizationPart:
    return QuantizationPart.model_validate({"method": method, "dtype": dtype, "config": config})


@pytest.mark.parametrize(
    ("left", "right", "change"),
    [
        (part(), part(), "same"),
        (part(), part(dtype="FP32"), "dtype"),
        (part(), part("Int8WeightOnly"), "Int8WeightOnly"),
        (part("Int8WeightOnly"), part(dtype="FP32"), "Int8WeightOnly"),
        (part("Int8WeightOnly"), part("Int8WeightOnly"), "same"),
        (part("Int8WeightOnly", keep=["a"]), part("Int8WeightOnly", keep=["b"]), "Int8WeightOnly"),
        (part(), part("FP8"), "Int8WeightOnly"),
        (part(), part("NeverHeardOf"), "Int4WeightOnly"),
    ],
)
def test_the_kind_of_numeric_change_chooses_the_row(
    left: QuantizationPart, right: QuantizationPart, change: str
) -> None:
    assert numeric_change(left, right) == change


def test_a_coarser_format_is_allowed_to_differ_more() -> None:
    def limits(method: str) -> dict[str, float | int]:
        candidate = make_manifest(quantization=part(method))
        return choose_limits("LogitComparison", make_manifest(quantization=part()), candidate, {})

    same, int8, int4 = (limits(method) for method in ("None", "Int8WeightOnly", "Int4WeightOnly"))
    assert same["klMeanMax"] < int8["klMeanMax"] < int4["klMeanMax"]
    assert same["top1AgreementMin"] > int8["top1AgreementMin"] > int4["top1AgreementMin"]


def test_a_limit_may_be_replaced_and_a_wrong_name_is_refused() -> None:
    manifest = make_manifest()
    overrides = {"LogitComparison.klMeanMax": 0.5, "SemanticParity.tokenAgreementMin": 0.1}
    assert choose_limits("LogitComparison", manifest, manifest, overrides)["klMeanMax"] == 0.5
    with pytest.raises(ReviewError, match="no limit 'klMeanMin'; it has klMeanMax"):
        choose_limits("LogitComparison", manifest, manifest, {"LogitComparison.klMeanMin": 1.0})


def test_a_clear_lead_is_what_the_gate_takes_for_one() -> None:
    assert clear_margin("FP32", "BF16") == clear_margin("BF16") == 1.0
    assert clear_margin("FP32") == pytest.approx(0.008)


def test_a_test_beyond_its_limits_cannot_say_that_it_passed() -> None:
    """Who writes a record by hand cannot have a failed test count."""
    fields = {"kind": "LogitComparison", "message": "", "limits": {"klMeanMax": 0.1, "top1AgreementMin": 0.9}}
    good = {"klMean": 0.1, "top1Agreement": 0.9}
    assert ReviewTest.model_validate({**fields, "passed": True, "measurements": good}).passed
    for bad in ({**good, "klMean": 0.11}, {**good, "top1Agreement": 0.8}, {"klMean": 0.1}, {**good, "klMean": "low"}):
        with pytest.raises(ValueError, match="cannot have passed"):
            ReviewTest.model_validate({**fields, "passed": True, "measurements": bad})
        assert not ReviewTest.model_validate({**fields, "passed": False, "measurements": bad}).passed


def test_prompts_of_ones_own_are_read_line_by_line() -> None:
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    text = "\n".join(['"Ahoy"', "", json.dumps({"name": "two", "messages": messages})])
    own = parse_prompts(text)
    assert [name for name, _ in own.prompts] == ["01 Ahoy", "two"]
    assert own.prompts[1][1] == tuple(messages)
    assert own.digest != BUILT_IN.digest == BUILT_IN.digest


@pytest.mark.parametrize("text", ["", "no json", "{}", "[1]", '{"messages": []}', '"a"\n' * 600])
def test_a_prompts_file_that_is_none_gets_a_sentence(text: str) -> None:
    with pytest.raises(ReviewError, match="prompts file"):
        parse_prompts(text)
