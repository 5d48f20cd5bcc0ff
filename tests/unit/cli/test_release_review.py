"""``pratique release review`` on files: what is shown, what is written, and each exit code."""

import json
from pathlib import Path
from typing import Any

import pytest

from pratique_cli.review.report import fold_alike
from pratique_contract.compare import FieldDifference
from pratique_contract.golden import GoldenRecord, RenderFixture
from pratique_contract.manifest import ChatTemplatePart
from pratique_contract.record import ReleaseRecord
from tests.support.releases import make_digest, make_manifest, make_record
from tests.unit.cli.conftest import Run

OTHER_TEMPLATE = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"


def templated(text: str) -> ReleaseRecord:
    """A record whose template differs from ``make_record``'s and renders the plain fixture as ``text``."""
    fixture = RenderFixture(name="plain", messages=({"role": "user", "content": "Ahoy"},), text=text, ids=(5, 6, 7))
    part = ChatTemplatePart(sha256=make_digest(OTHER_TEMPLATE), length=len(OTHER_TEMPLATE))
    return make_record(
        manifest=make_manifest(chat_template=part),
        golden=GoldenRecord(fixtures=(fixture,)),
        chat_template=OTHER_TEMPLATE,
    )


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Written files by name; ``serving`` is what is reviewed against."""
    engine = make_manifest().engine
    values: dict[str, Any] = {
        "serving": make_record().to_json_value(),
        "template": templated("[Ahoy]").to_json_value(),
        "deaf": templated("[]").to_json_value(),
        "engine": make_record(
            manifest=make_manifest(engine=engine.model_copy(update={"build": make_digest("other")}))
        ).to_json_value(),
        "branch": make_manifest(model=make_manifest().model.model_copy(update={"revision": "main"})).to_json_value(),
        "later": {**make_record().to_json_value(), "version": "pratique.dev/record/v2", "more": {}},
    }
    paths = {}
    for name, value in values.items():
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_text(json.dumps(value))
    return paths


BECAUSE = ("--intentional", "chatTemplate=the model was trained with brackets")


@pytest.mark.req("R131", "R132")
def test_a_difference_with_a_reason_and_a_passed_test_is_covered(
    pratique: Run, files: dict[str, Path], tmp_path: Path
) -> None:
    unexplained = pratique("release", "review", files["serving"], files["template"])
    assert unexplained.code == 1
    assert "chatTemplate differs and nobody gave a reason" in unexplained.out
    assert "+'[Ahoy]'" in unexplained.out, "what changed is shown"
    covered = pratique("release", "review", files["serving"], files["template"], *BECAUSE)
    assert covered.code == 0, covered.out
    assert "the model was trained with brackets" in covered.out
    assert "Equal in both: model, adapters, tokenizer, specialTokens" in covered.out


def test_the_review_is_written_into_the_record_and_counts_there(
    pratique: Run, files: dict[str, Path], tmp_path: Path
) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    for out in (first, second):
        assert pratique("release", "review", files["serving"], files["template"], *BECAUSE, "--write", out).code == 0
    assert first.read_bytes() == second.read_bytes()
    record = ReleaseRecord.from_json(first.read_text())
    assert first.read_text() == f"{record.to_json()}\n"
    assert record.review is not None
    assert record.review.summary() == {
        "intentional": {"chatTemplate": "the model was trained with brackets"},
        "tests": {"RenderedFixtures": True},
    }
    # A later look needs neither the reason nor the test again, and against another reference it counts for nothing.
    assert pratique("release", "review", files["serving"], first).code == 0
    assert pratique("release", "review", files["engine"], first).code == 1


def test_a_test_that_fails_has_a_code_of_its_own(pratique: Run, files: dict[str, Path]) -> None:
    result = pratique("release", "review", files["serving"], files["deaf"], *BECAUSE)
    assert result.code == 5
    assert "contentLost is 1, at most 0 is allowed" in result.out


def test_a_failed_test_is_accepted_only_by_a_limit_that_stands_in_the_review(
    pratique: Run, files: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    lenient = ("--limit", "RenderedFixtures.contentLostMax=1", "--write", out)
    assert pratique("release", "review", files["serving"], files["deaf"], *BECAUSE, *lenient).code == 0
    review = ReleaseRecord.from_json(out.read_text()).review
    assert review is not None
    assert review.tests[0].limits["contentLostMax"] == 1


def test_a_test_that_cannot_be_run_here_says_what_it_needs(pratique: Run, files: dict[str, Path]) -> None:
    result = pratique("release", "review", files["serving"], files["engine"], "--intentional", "engine=faster")
    assert result.code == 1
    assert "no SemanticParity test was run" in result.out
    assert "both releases have to be loaded" in result.out


@pytest.mark.req("R133")
@pytest.mark.parametrize(
    ("candidate", "sentence"),
    [
        ("branch", "model.revision: 'main' of the candidate is neither a commit nor a digest"),
        ("later", "a record of 'pratique.dev/record/v2' is not of the contract version"),
    ],
)
def test_what_cannot_be_compared_is_not_reproducible(
    pratique: Run, files: dict[str, Path], candidate: str, sentence: str
) -> None:
    result = pratique("release", "review", files["serving"], files[candidate], "--intentional", "model=new")
    if candidate == "later":
        assert "These two documents cannot be compared." in result.out
    assert result.code == 4, result.err
    assert "Not reproducible" in result.out
    assert sentence in " ".join(result.out.split())


def test_the_same_release_has_nothing_to_review(pratique: Run, files: dict[str, Path]) -> None:
    result = pratique("release", "review", files["serving"], files["serving"])
    assert (result.code, result.out.splitlines()[-1]) == (0, "The releases are the same: all eight parts are equal.")


def test_json_is_for_programs(pratique: Run, files: dict[str, Path]) -> None:
    value = json.loads(pratique("release", "review", files["serving"], files["template"], "-o", "json").out)
    assert value["result"] == "NotCovered"
    (difference,) = value["differences"]
    assert (difference["part"], difference["intentional"]) == ("chatTemplate", None)
    assert {field["path"] for field in difference["fields"]} == {"sha256", "length"}
    assert difference["tests"]["RenderedFixtures"]["passed"] is True
    assert value["renderingChanges"][0]["lines"] == ["@@ -1 +1 @@", "-'Ahoy'", "+'[Ahoy]'"]
    assert value["review"]["candidate"] == value["candidate"]


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--intentional", "template=x"), 2, "--intentional takes"),
        (("--intentional", "chatTemplate="), 2, "--intentional takes"),
        (("--intentional", "engine=x"), 2, "engine does not differ"),
        (("--limit", "RenderedFixtures.contentLostMax=low"), 2, "has no number"),
        (("--limit", "RenderedFixtures.speedMin=1"), 2, "no limit 'speedMin'"),
        (("--limit", "LogitComparison.klMeanMax=1"), 2, "the tests of this review are RenderedFixtures"),
        (("--limit", "Speed.min=1"), 2, "names no test"),
        (("--test", "Luck"), 2, "--test takes"),
        (("--reference-dtype", "FP32"), 2, "--reference"),
        (("--prompts", "nowhere"), 2, "would be asked by no test"),
        (("--prompts", "nowhere", "--test", "SemanticParity"), 3, "cannot be read"),
    ],
)
def test_wrong_options_get_a_sentence(
    pratique: Run, files: dict[str, Path], options: tuple[str, ...], code: int, sentence: str
) -> None:
    result = pratique("release", "review", files["serving"], files["template"], *options)
    assert (result.code, sentence in result.err) == (code, True), result


def test_a_review_cannot_be_written_into_a_manifest(pratique: Run, files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = pratique("release", "review", files["serving"], files["branch"], "--write", out)
    assert (result.code, out.exists()) == (2, False)


def test_many_alike_fields_are_told_as_one() -> None:
    tensors = [FieldDifference(path=f"quantized[layer.{n}]", expected="absent", observed="present") for n in range(9)]
    dtype = FieldDifference(path="dtype", expected="BF16", observed="FP32")
    told = list(fold_alike([dtype, *tensors]))
    assert [field.path for field in told] == ["dtype", "quantized[9 entries: layer.0 … layer.8]"]
    assert list(fold_alike(tensors[:4])) == tensors[:4]
