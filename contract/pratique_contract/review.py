"""The review: what differs between a reference release and a candidate, why, and which test covers each difference.

In go two manifests and the findings a person and ``pratique release review`` wrote into the candidate's record; out come the differences
that nobody explained or no passed test of the right kind covers. Pure: command line and operator decide by the same function.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from pratique_contract.comparable import find_not_comparable
from pratique_contract.compare import PartDifference, compare_manifests
from pratique_contract.manifest import Digest, ReleaseManifest
from pratique_contract.model import ContractModel, Several

TestKind = Literal["RenderedFixtures", "SemanticParity", "LogitComparison", "Workload"]
KINDS: Final[tuple[TestKind, ...]] = get_args(TestKind)

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


_BOUNDS: Final = ("Min", "Max")


def find_exceeded(measurements: Mapping[str, Any], limits: Mapping[str, Any]) -> list[str]:
    """The figures beyond their limits: ``xMin`` and ``xMax`` bound the figure ``x``, other names are parameters. A figure that was not
    taken is within nothing."""
    found = []
    for name, limit in limits.items():
        figure, bound = name[:-3], name[-3:]
        if bound not in _BOUNDS:
            continue
        value = measurements.get(figure)
        if not isinstance(limit, int | float):
            found.append(f"{name} is {limit!r}, no number")
        elif not isinstance(value, int | float):
            found.append(f"{figure} was not measured")
        elif not (value >= limit if bound == "Min" else value <= limit):
            found.append(f"{figure} is {value:g}, {'at least' if bound == 'Min' else 'at most'} {limit:g} is allowed")
    return found


class ReviewTest(ContractModel):
    """One test that was run on both releases. ``measurements`` are its figures, ``limits`` what they were held against: with figures
    beyond its limits it cannot say that it passed."""

    kind: TestKind
    passed: bool
    message: str
    measurements: dict[str, float | int | str] = {}
    limits: dict[str, float | int | str] = {}

    @model_validator(mode="after")
    def _passed_means_within_limits(self) -> Self:
        if self.passed and (exceeded := find_exceeded(self.measurements, self.limits)):
            raise ValueError(f"{self.kind} cannot have passed: {'; '.join(exceeded)}")
        return self

    @property
    def is_measured(self) -> bool:
        """Whether any figure was held against anything: without one, "passed" is only somebody's word."""
        return any(name[-3:] in _BOUNDS for name in self.limits)


class ReviewedDifference(ContractModel):
    """A part that differs on purpose, and the reason a person gave."""

    part: str
    intentional: Annotated[str, Field(min_length=1, max_length=1000)]


class Review(ContractModel):
    """Findings on one candidate against one reference. It counts for exactly these two fingerprints. ``not_comparable`` holds
    ``path: why`` for each field that says nothing about what was released."""

    reference: Digest
    candidate: Digest
    differences: Several[ReviewedDifference] = ()
    tests: Several[ReviewTest] = ()
    not_comparable: Several[str] = ()

    def is_about(self, reference: ReleaseManifest, candidate: ReleaseManifest) -> bool:
        """Whether it was made of exactly these two releases."""
        return (self.reference, self.candidate) == (reference.fingerprint, candidate.fingerprint)

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
    """All differing parts, and those without a reason or without a passed test of each required kind. What cannot be compared is found
    here anew: a review that leaves it out hides nothing. Two equal fingerprints have nothing to review."""
    differences = compare_manifests(reference, candidate)
    if not differences:
        return (), ()
    valid = review if review is not None and review.is_about(reference, candidate) else None
    uncovered = [finding for difference in differences for finding in _missing(difference.part, valid)]
    listed = valid.not_comparable if valid is not None else ()
    for finding in dict.fromkeys((*find_not_comparable(reference, candidate), *listed)):
        part = finding.split(":", 1)[0].split(".", 1)[0].split("[", 1)[0]
        uncovered.append(Uncovered(part=part, message=f"not reproducible: {finding}"))
    return differences, tuple(uncovered)


def find_mismatch(described: ReleaseManifest, loaded: ReleaseManifest, *, other_build: bool) -> PartDifference | None:
    """Where what was loaded for a test is not what the review is about; None when it is. The image is left out, since a desk runs
    another one. ``other_build`` lets another program compute: a reference may be older than the one who reviews."""
    for difference in compare_manifests(described, loaded, fields_max=None):
        if difference.part != "engine":
            return difference
        fields = tuple(field for field in difference.fields if field.path != "imageDigest")
        if fields and not other_build:
            return difference.model_copy(update={"fields": fields})
    return None


def required_tests(parts: Iterable[str]) -> tuple[TestKind, ...]:
    """Every kind of test that these differing parts demand, each once."""
    return tuple(dict.fromkeys(kind for part in parts for kind in REQUIRED_TESTS[part]))


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
        elif not all(test.is_measured for test in tests):
            found.append(Uncovered(part=part, message=f"{part} differs and its {kind} test was held against no limit"))
    return found
