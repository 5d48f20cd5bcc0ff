"""What makes a record strong enough: a pod must not get ready for one that proves next to nothing."""

import pytest
from pydantic import ValidationError

from pratique_contract.golden import (
    FIXTURE_KINDS,
    GoldenRecord,
    RefusedFixture,
    find_gaps,
)
from tests.support.releases import make_case, make_digest, make_golden, make_output, make_record

AHOY = ({"role": "user", "content": "Ahoy"},)


def test_the_recorders_kinds_and_enough_tokens_are_no_gap() -> None:
    assert find_gaps(make_golden()) == ()


def test_a_refused_kind_counts_as_covered() -> None:
    golden = make_golden()
    kept = tuple(fixture for fixture in golden.fixtures if fixture.name != "tools")
    refused = (RefusedFixture(name="tools", messages=AHOY, message="no tools here"),)
    assert find_gaps(golden.model_copy(update={"fixtures": kept, "refused": refused})) == ()
    assert "the fixture tools" in find_gaps(golden.model_copy(update={"fixtures": kept}))[0]


def test_a_record_without_cases_fixtures_or_substance_has_a_gap() -> None:
    golden = make_golden()
    assert "no golden case" in find_gaps(GoldenRecord(fixtures=golden.fixtures))[0]
    assert "no rendering fixture" in find_gaps(golden.model_copy(update={"fixtures": ()}))[0]
    assert "3 output tokens in all" in find_gaps(golden.model_copy(update={"cases": (make_case(),)}))[0]


def test_one_forced_token_again_and_again_is_a_gap() -> None:
    parrot = make_output(ids=(10, 10, 10), text="aaa")
    cases = tuple(case.model_copy(update={"outputs": (parrot,)}) for case in make_golden().cases)
    assert find_gaps(make_golden().model_copy(update={"cases": cases})) == (
        "its golden cases only ever say 1 different tokens",
    )


def test_the_same_question_under_two_names_is_a_gap() -> None:
    cases = tuple(make_case(name=f"case-{number}") for number in range(4))
    assert "two of its golden cases ask the same" in find_gaps(make_golden().model_copy(update={"cases": cases}))


def test_the_weakest_device_decides() -> None:
    """A long output of one device must not make up for a short one of the device that the pod runs on."""
    short = make_output(
        ids=(10,), text="a", logprobs=(-0.1,), margins=(1.0,), usage={"prompt_tokens": 2, "completion_tokens": 1}
    )
    other = short.model_copy(update={"device_class": "cuda-sm90"})
    cases = tuple(case.model_copy(update={"outputs": (*case.outputs, other)}) for case in make_golden().cases)
    assert "3 output tokens in all" in find_gaps(make_golden().model_copy(update={"cases": cases}))[0]


def test_a_fixture_is_rendered_or_refused_but_not_both() -> None:
    with pytest.raises(ValidationError, match="'plain' is given twice"):
        make_golden(refused=(RefusedFixture(name="plain", messages=AHOY),))
    assert set(FIXTURE_KINDS) == {fixture.name for fixture in make_golden().fixtures}


def test_a_template_that_refuses_everything_but_one_fixture_is_a_gap() -> None:
    """Messages that any template refuses would cover every kind."""
    golden = make_golden()
    refused = tuple(RefusedFixture(name=f.name, messages=AHOY) for f in golden.fixtures if f.name != "emoji")
    kept = tuple(fixture for fixture in golden.fixtures if fixture.name == "emoji")
    gaps = find_gaps(golden.model_copy(update={"fixtures": kept, "refused": refused}))
    assert gaps == ("it does not render the fixture plain, which every template takes",)


@pytest.mark.parametrize("foreign", [{"dtype": "BF16"}, {"engine_build": make_digest("another build")}])
def test_outputs_of_other_builds_and_formats_alone_are_a_gap(foreign: dict[str, str]) -> None:
    """BF16 outputs in the record of an FP32 release would hold its pods to BF16's tolerance."""
    own = make_record()
    assert own.find_gaps() == ()
    other = make_output(**foreign)
    cases = tuple(case.model_copy(update={"outputs": (*case.outputs, other)}) for case in own.golden.cases)
    beside = own.model_copy(update={"golden": own.golden.model_copy(update={"cases": cases})})
    assert beside.find_gaps() == ()
    cases = (cases[0].model_copy(update={"outputs": (other,)}), *cases[1:])
    alone = own.model_copy(update={"golden": own.golden.model_copy(update={"cases": cases})})
    assert alone.find_gaps() == (f"its case {cases[0].name} has no output of its own build in FP32",)
