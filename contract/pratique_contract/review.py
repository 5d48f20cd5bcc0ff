"""The review: what differs between a reference release and a candidate, why, and which test covers each difference.

In go two manifests and the findings a person and ``pratique release review`` wrote into the candidate's record; out come the differences
that nobody explained or no passed test of the right kind covers. Pure: command line and operator decide by the same function.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from pratique_contract.compare import PartDifference, compare_manifests
from pratique_contract.manifest import Digest, ReleaseManifest
from pratique_contract.model import ContractModel

TestKind = Literal["RenderedFixtures", "SemanticParity", "LogitComparison", "Workload"]

# What must have been tested when a part differs. Each listed kind is needed.
REQUIRED_TESTS: Final[dict[str, tuple[TestKind, ...]]] = {
    "model": ("SemanticParity", "LogitComparison"),
    "adapters": ("SemanticParity", "LogitComparison"),
    "tokenizer": ("RenderedFixtures", "SemanticParity"),
    "chatTemplate": ("RenderedFixtures",),
    "specialTokens": ("RenderedFixtures", "SemanticParity"),
    "quantization": ("SemanticParity", "LogitComparison"),
    "engine": ("SemanticParity",),
    "servingFlags": ("Workload",),
}


class ReviewTest(ContractModel):
    """One test that was run on both releases. ``measurements`` are its figures, ``limits`` what they were held against."""

    kind: TestKind
    passed: bool
    message: str
    measurements: dict[str, float | int | str] = {}
    limits: dict[str, float | int | str] = {}


class ReviewedDifference(ContractModel):
    """A part that differs on purpose, and the reason a person gave."""

    part: str
    intentional: Annotated[str, Field(min_length=1, max_length=1000)]


class Review(ContractModel):
    """Findings on one candidate against one reference. It counts for exactly these two fingerprints."""

    reference: Digest
    candidate: Digest
    differences: tuple[ReviewedDifference, ...] = ()
    tests: tuple[ReviewTest, ...] = ()
    not_comparable: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """What passed and what was said, by name, for tables."""
        return {
            "intentional": {d.part: d.intentional for d in self.differences},
            "tests": {t.kind: t.passed for t in self.tests},
        }


class Uncovered(ContractModel):
    """One difference the review does not cover, and what is missing."""

    part: str
    message: str


def find_uncovered(
    reference: ReleaseManifest, candidate: ReleaseManifest, review: Review | None
) -> tuple[tuple[PartDifference, ...], tuple[Uncovered, ...]]:
    """All differing parts, and those without a reason or without a passed test of each required kind."""
    differences = compare_manifests(reference, candidate)
    valid = review if review is not None and _is_about(review, reference, candidate) else None
    uncovered = [finding for difference in differences for finding in _missing(difference.part, valid)]
    if valid is not None:
        uncovered += [
            Uncovered(
                part=field.split(".", 1)[0], message=f"{field} cannot be compared: the release is not reproducible"
            )
            for field in valid.not_comparable
        ]
    return differences, tuple(uncovered)


def _is_about(review: Review, reference: ReleaseManifest, candidate: ReleaseManifest) -> bool:
    return (review.reference, review.candidate) == (reference.fingerprint, candidate.fingerprint)


def _missing(part: str, review: Review | None) -> list[Uncovered]:
    if review is None:
        return [Uncovered(part=part, message=f"{part} differs and no review of these two releases covers it")]
    found = []
    if part not in {difference.part for difference in review.differences}:
        found.append(Uncovered(part=part, message=f"{part} differs and nobody gave a reason"))
    for kind in REQUIRED_TESTS[part]:
        tests = [test for test in review.tests if test.kind == kind]
        if not tests:
            found.append(Uncovered(part=part, message=f"{part} differs and no {kind} test was run"))
        elif not all(test.passed for test in tests):
            failed = next(test for test in tests if not test.passed)
            found.append(Uncovered(part=part, message=f"{part} differs and its {kind} test failed: {failed.message}"))
    return found
