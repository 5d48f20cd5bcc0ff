"""What a review must cover, and which fields make a release not reproducible."""

from typing import Any

import pytest

from pratique_contract import PARTS
from pratique_contract.comparable import find_not_comparable, find_unreadable
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.record import RECORD_VERSION
from pratique_contract.review import (
    REQUIRED_TESTS,
    Review,
    ReviewedDifference,
    ReviewTest,
    find_mismatch,
    find_uncovered,
    required_tests,
)
from tests.support.releases import make_digest, make_file, make_manifest, make_record

REFERENCE = make_manifest()


def change(part: str, **fields: Any) -> ReleaseManifest:
    return REFERENCE.model_copy(update={part: getattr(REFERENCE, part).model_copy(update=fields)})


CHANGES: dict[str, ReleaseManifest] = {
    "model": change("model", files=(make_file("config.json"), make_file("model.safetensors", "other"))),
    "adapters": change("adapters", adapters=()),
    "tokenizer": change("tokenizer", vocab_size=7),
    "chatTemplate": change("chat_template", sha256=make_digest("other"), length=5),
    "specialTokens": change("special_tokens", stop_ids=(2, 3)),
    "quantization": change("quantization", dtype="BF16"),
    "engine": change("engine", build=make_digest("other build")),
    "servingFlags": change("serving_flags", flags={"maxNumSeqs": 8}),
}


def make_review(candidate: ReleaseManifest, *parts: str, **fields: Any) -> Review:
    tests = tuple(
        ReviewTest(kind=kind, passed=True, message="ok", measurements={"klMean": 0.1}, limits={"klMeanMax": 0.3})
        for kind in required_tests(parts)
    )
    defaults: dict[str, Any] = {
        "reference": REFERENCE.fingerprint,
        "candidate": candidate.fingerprint,
        "differences": tuple(ReviewedDifference(part=part, intentional="on purpose") for part in parts),
        "tests": tests,
    }
    return Review(**{**defaults, **fields})


def messages(candidate: ReleaseManifest, review: Review | None) -> list[str]:
    return [finding.message for finding in find_uncovered(REFERENCE, candidate, review)[1]]


@pytest.mark.req("R131", "R132")
@pytest.mark.parametrize("part", PARTS)
def test_a_difference_needs_a_reason_and_every_test_its_part_demands(part: str) -> None:
    candidate = CHANGES[part]
    assert messages(candidate, None) == [f"{part} differs and no review of these two releases covers it"]
    assert messages(candidate, make_review(candidate, part)) == []
    assert messages(candidate, make_review(candidate, part, differences=())) == [
        f"{part} differs and nobody gave a reason"
    ]
    for kind in REQUIRED_TESTS[part]:
        whole = make_review(candidate, part)
        others = tuple(test for test in whole.tests if test.kind != kind)
        assert messages(candidate, make_review(candidate, part, tests=others)) == [
            f"{part} differs and no {kind} test was run"
        ]
        failed = ReviewTest(kind=kind, passed=False, message="too far apart")
        assert messages(candidate, make_review(candidate, part, tests=(*others, failed))) == [
            f"{part} differs and its {kind} test failed: too far apart"
        ]


def test_other_kept_layers_are_a_difference_of_the_quantization() -> None:
    candidate = change("quantization", config={"keep": ["*.down_proj"]}, kept=("model.layers.0.mlp.down_proj.weight",))
    assert [difference.part for difference in find_uncovered(REFERENCE, candidate, None)[0]] == ["quantization"]
    assert messages(candidate, make_review(candidate, "quantization")) == []


def test_a_test_that_was_held_against_nothing_covers_nothing() -> None:
    """A record is a file that anyone can write "passed" into."""
    candidate = CHANGES["chatTemplate"]
    bare = ReviewTest(
        kind="RenderedFixtures", passed=True, message="ok", measurements={"changed": 0}, limits={"note": "x"}
    )
    assert messages(candidate, make_review(candidate, "chatTemplate", tests=(bare,))) == [
        "chatTemplate differs and its RenderedFixtures test was held against no limit"
    ]


@pytest.mark.parametrize("limit", ["a", "0.3"])
def test_a_limit_that_is_no_number_is_refused_when_the_record_is_read(limit: str) -> None:
    """It ended the operator's pass: a text compares with no figure."""
    with pytest.raises(ValueError, match=f"klMeanMax is '{limit}', no number"):
        ReviewTest(
            kind="LogitComparison", passed=True, message="ok", measurements={"klMean": 0.1}, limits={"klMeanMax": limit}
        )


def test_a_review_of_other_releases_covers_nothing() -> None:
    candidate = CHANGES["engine"]
    about_another = make_review(candidate, "engine", reference=make_digest("another"))
    assert messages(candidate, about_another) == messages(candidate, None)


def test_the_same_release_has_nothing_to_review() -> None:
    assert find_uncovered(REFERENCE, REFERENCE, None) == ((), ())


NOT_COMPARABLE: dict[str, tuple[ReleaseManifest, str]] = {
    "branch name": (change("model", revision="main"), "model.revision: 'main' of the candidate is neither a commit"),
    "tokenizer's branch": (change("tokenizer", revision="main"), "tokenizer.revision: 'main'"),
    "unknown build": (change("engine", build="unknown"), "engine.build: 'unknown' of the candidate names no build"),
    "image on one side": (
        change("engine", image_digest=make_digest("image")),
        "engine.imageDigest: only the candidate",
    ),
    "nothing hashed": (change("model", files=()), "model.files: no file of the candidate was hashed"),
}


@pytest.mark.req("R133")
@pytest.mark.parametrize("case", NOT_COMPARABLE)
def test_a_field_that_says_nothing_makes_the_release_not_reproducible(case: str) -> None:
    candidate, sentence = NOT_COMPARABLE[case]
    (finding,) = find_not_comparable(REFERENCE, candidate)
    assert finding.startswith(sentence)
    part = finding.split(".")[0]
    # However complete the review is, and even when it does not list the field.
    assert messages(candidate, make_review(candidate, part)) == [f"not reproducible: {finding}"]


def test_a_branch_name_says_nothing_even_when_both_sides_have_it() -> None:
    candidate = change("model", revision="main")
    assert len(find_not_comparable(candidate, candidate)) == 2


def test_neither_side_needs_an_image_digest_when_the_build_is_known() -> None:
    assert find_not_comparable(REFERENCE, CHANGES["engine"]) == ()


def test_a_remote_engine_is_known_by_its_images_digest() -> None:
    left = change("engine", build="0.32.0", image_digest=make_digest("a"))
    right = change("engine", build="0.33.0", image_digest=make_digest("b"))
    assert find_not_comparable(left, right) == ()


def test_a_document_of_another_contract_version_or_without_a_digest_is_not_comparable() -> None:
    record = make_record().to_json_value()
    assert record["version"] == RECORD_VERSION
    assert find_unreadable(record) == find_unreadable(record["manifest"]) == find_unreadable([]) == ()
    for version in ("pratique.dev/record/v2", "pratique.dev/record/v10", None):
        assert find_unreadable({**record, "version": version})[0].startswith(f"version: a record of {version!r}")
    manifest = {**record["manifest"], "version": "pratique.dev/manifest/v2"}
    assert find_unreadable(manifest)[0].startswith("version: 'pratique.dev/manifest/v2'")
    record["manifest"]["tokenizer"]["files"][0]["sha256"] = None
    path = record["manifest"]["tokenizer"]["files"][0]["path"]
    assert find_unreadable(record) == (f"tokenizer.files[{path}].sha256: the file is listed without a digest",)


def test_a_test_of_other_files_than_those_under_review_is_noticed() -> None:
    """The oldest way to a good review: test something else. The image does not count, and the reference may be of an older build."""
    for part in PARTS:
        mismatch = find_mismatch(REFERENCE, CHANGES[part], other_build=False)
        assert mismatch is not None
        assert mismatch.part == part
    another_image = change("engine", image_digest=make_digest("image"))
    assert find_mismatch(REFERENCE, another_image, other_build=False) is None
    assert find_mismatch(REFERENCE, CHANGES["engine"], other_build=True) is None
