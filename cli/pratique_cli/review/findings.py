"""From two releases, reasons and test results to the review and the exit code. Pure.

What an earlier review of the same two releases says stays: a reason given then, and the result of a test that was not run again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pratique_cli.errors import EXIT_FAILED_TEST, EXIT_NO, EXIT_NOT_REPRODUCIBLE, EXIT_OK, EXIT_USAGE, CliError
from pratique_cli.review.sides import Sides
from pratique_cli.review.tests import Outcome
from pratique_contract.compare import PartDifference, compare_manifests
from pratique_contract.manifest import PARTS
from pratique_contract.review import (
    KINDS,
    REQUIRED_TESTS,
    Review,
    ReviewedDifference,
    ReviewTest,
    Uncovered,
    find_uncovered,
)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything the report shows. ``review`` is None when the two documents cannot be compared at all."""

    sides: Sides
    outcome: Outcome
    differences: tuple[PartDifference, ...]
    review: Review | None
    uncovered: tuple[Uncovered, ...]
    not_comparable: tuple[str, ...]

    @property
    def failed(self) -> list[ReviewTest]:
        return [test for test in self.review.tests if not test.passed] if self.review else []

    @property
    def exit_code(self) -> int:
        """The gravest finding decides."""
        if self.not_comparable:
            return EXIT_NOT_REPRODUCIBLE
        if self.failed:
            return EXIT_FAILED_TEST
        return EXIT_NO if self.uncovered else EXIT_OK

    @property
    def result(self) -> str:
        """One word for programs and people."""
        names = {
            EXIT_OK: "Covered",
            EXIT_NO: "NotCovered",
            EXIT_NOT_REPRODUCIBLE: "NotReproducible",
            EXIT_FAILED_TEST: "TestFailed",
        }
        return names[self.exit_code]

    def reasons(self) -> dict[str, str]:
        return {d.part: d.intentional for d in self.review.differences} if self.review else {}

    def tests_of(self, part: str) -> list[tuple[str, ReviewTest | None]]:
        """Each test that the part demands, with its result."""
        results = {test.kind: test for test in self.review.tests} if self.review else {}
        return [(kind, results.get(kind)) for kind in REQUIRED_TESTS[part]]

    def to_json_value(self) -> dict[str, Any]:
        reasons = self.reasons()
        return {
            "result": self.result,
            "reference": self.sides.reference.fingerprint if self.sides.reference else None,
            "candidate": self.sides.candidate.fingerprint if self.sides.candidate else None,
            "differences": [
                {
                    **difference.to_json_value(),
                    "intentional": reasons.get(difference.part),
                    "tests": {kind: test and test.to_json_value() for kind, test in self.tests_of(difference.part)},
                }
                for difference in self.differences
            ],
            "same": [part for part in PARTS if part not in self.sides.differing] if self.sides.manifests else [],
            "uncovered": [finding.to_json_value() for finding in self.uncovered],
            "notComparable": list(self.not_comparable),
            "notRun": self.outcome.missing,
            "renderingChanges": self.outcome.changes,
            "divergences": self.outcome.divergences,
            "workload": self.outcome.workload,
            "review": self.review.to_json_value() if self.review else None,
        }

    def reviewed_record(self) -> str:
        """The candidate's record with the review in it, as the text of its file; raises ``CliError``."""
        from pratique_cli.records import RecordText

        if self.sides.candidate_record is None or self.review is None:
            raise CliError("The two releases cannot be compared, so there is no review to write")
        return RecordText.of(self.sides.candidate_record.model_copy(update={"review": self.review})).text


def conclude(sides: Sides, reasons: Mapping[str, str], outcome: Outcome) -> Findings:
    """Put the review together and find what it does not cover. Raises ``CliError`` for a reason given for a part that does not differ."""
    if sides.manifests is None:
        return Findings(
            sides=sides,
            outcome=outcome,
            differences=(),
            review=None,
            uncovered=(),
            not_comparable=sides.not_comparable,
        )
    differing = sides.differing
    idle = [part for part in reasons if part not in differing]
    if idle:
        raise CliError(
            f"{idle[0]} does not differ between the two releases, so nothing about it is intentional", code=EXIT_USAGE
        )
    review = _merge(sides, reasons, outcome, differing)
    _, uncovered = find_uncovered(*sides.manifests, review)
    return Findings(
        sides=sides,
        outcome=outcome,
        differences=compare_manifests(*sides.manifests, fields_max=None),
        review=review,
        uncovered=uncovered,
        not_comparable=sides.not_comparable,
    )


def _merge(sides: Sides, reasons: Mapping[str, str], outcome: Outcome, differing: Sequence[str]) -> Review:
    assert sides.manifests is not None  # checked by the caller
    reference, candidate = sides.manifests
    earlier = sides.candidate_record.review if sides.candidate_record else None
    known = earlier if earlier is not None and earlier.is_about(reference, candidate) else None
    kept = {d.part: d.intentional for d in known.differences} if known else {}
    told = {**kept, **reasons}
    run = {test.kind: test for test in (*(known.tests if known else ()), *outcome.tests)}
    return Review(
        reference=reference.fingerprint,
        candidate=candidate.fingerprint,
        differences=tuple(ReviewedDifference(part=part, intentional=told[part]) for part in differing if part in told),
        tests=tuple(run[kind] for kind in sorted(run)),
        not_comparable=sides.not_comparable,
    )


def parse_intentional(given: Sequence[str]) -> dict[str, str]:
    """Reasons by part, from ``PART=REASON`` each; raises ``CliError``."""
    reasons = {}
    for item in given:
        part, _, reason = item.partition("=")
        if part not in PARTS or not reason.strip():
            raise CliError(
                f'--intentional takes PART="reason" with a part of {", ".join(PARTS)}; not {item!r}', code=EXIT_USAGE
            )
        reasons[part] = reason.strip()
    return reasons


def parse_limits(given: Sequence[str]) -> dict[str, float]:
    """Limits by ``Test.name``, from ``Test.name=number`` each; raises ``CliError``."""
    limits = {}
    for item in given:
        name, _, text = item.partition("=")
        if name.partition(".")[0] not in KINDS:
            raise CliError(
                f"--limit takes TEST.NAME=NUMBER; {item!r} names no test ({', '.join(KINDS)})", code=EXIT_USAGE
            )
        try:
            limits[name] = float(text)
        except ValueError as error:
            raise CliError(f"--limit takes TEST.NAME=NUMBER; {item!r} has no number", code=EXIT_USAGE) from error
    return limits
