"""The review between the release that serves and the one that is to replace it, decided by the contract's ``find_uncovered``. Pure.

The reference of a target that has not served is the revision that serves; of one that has, the revision it replaced. So what is said
about a candidate stays true after its promotion. A revision, or a release, that served before needs no review to serve again: the way
back must be open at night. What is not known (a record that is missing) is Unknown, and under ``Block`` not started. A first release
is compared with nothing: Unknown too, and started.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pratique_contract import Reason
from pratique_contract.canonical import short_digest
from pratique_contract.compare import PartDifference, compare_golden
from pratique_contract.record import ReleaseRecord
from pratique_contract.review import Uncovered, find_uncovered
from pratique_operator import names

Manifest = dict[str, Any]
RecordOf = Callable[[str], ReleaseRecord | None]
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class ReviewState:
    """What is known of the review of the target. ``holds``: the policy lets no pod of it start."""

    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: str
    holds: bool = False
    reference: str | None = None
    reference_revision: str | None = None
    record_ref: str | None = None
    differences: tuple[PartDifference, ...] = ()
    uncovered: tuple[Uncovered, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """The target as the review sees it."""

    revision: str
    record: ReleaseRecord | None
    record_ref: str | None


def compute_review(
    candidate: Candidate,
    deployments: Mapping[str, Manifest],
    *,
    entry: str | None,
    entry_ready: bool,
    record_of: RecordOf,
    blocks: bool,
) -> ReviewState:
    """``record_of`` gives the record a revision serves with, None when it is not known. ``entry_ready``: the revision the entry
    selects has ready pods, so it serves although that is not written down yet."""
    served = {name: at for name, found in deployments.items() if (at := served_at(found)) is not None}
    if entry is not None and entry_ready:
        served.setdefault(entry, _NEVER)
    reference = _choose_reference(candidate.revision, served, entry)
    if reference is None:
        return ReviewState(
            # Not True: whoever reads "passed" takes it that somebody has looked.
            "Unknown",
            Reason.NOTHING_TO_COMPARE,
            "no earlier release is kept, so nothing was reviewed",
        )
    state = _compare(candidate, reference, record_of(reference))
    if state.status == "True":
        return state
    before = _served_before(candidate, served, record_of)
    if before is not None:
        return _went_back(state, before)
    # What the entry selects has been let through already.
    return _hold(state) if blocks and entry != candidate.revision else state


def served_at(deployment: Manifest) -> datetime | None:
    """When the revision first took traffic; None: it never did, or somebody has written over the time with what is none."""
    value = deployment["metadata"].get("annotations", {}).get(names.ANNOTATION_SERVED_AT)
    try:
        moment = datetime.fromisoformat(value or "")
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _choose_reference(target: str, served: Mapping[str, datetime], entry: str | None) -> str | None:
    since = served.get(target)
    earlier = {name: at for name, at in served.items() if name != target and (since is None or at < since)}
    if since is None and entry in earlier:
        return entry
    return max(earlier, key=lambda name: (earlier[name], name), default=None)


def _compare(candidate: Candidate, reference_revision: str, reference: ReleaseRecord | None) -> ReviewState:
    if reference is None or candidate.record is None:
        text = f"revision {candidate.revision} has no release record to review; name one in recordRef (pratique release record)"
        if reference is None:
            text = f"revision {reference_revision}, which serves, has no release record to review against"
        return ReviewState("Unknown", Reason.REVIEW_REQUIRED, text, reference_revision=reference_revision)
    record = candidate.record
    differences, uncovered = find_uncovered(reference.manifest, record.manifest, record.review)
    text = _sentence(reference, record, differences, uncovered)
    return ReviewState(
        "False" if uncovered else "True",
        _reason(differences, uncovered),
        text,
        reference=reference.fingerprint,
        reference_revision=reference_revision,
        record_ref=candidate.record_ref,
        differences=differences,
        uncovered=uncovered,
    )


def _reason(differences: tuple[PartDifference, ...], uncovered: tuple[Uncovered, ...]) -> Reason:
    if uncovered:
        return Reason.REVIEW_REQUIRED
    return Reason.REVIEW_PASSED if differences else Reason.SAME_RELEASE


def _sentence(
    reference: ReleaseRecord,
    record: ReleaseRecord,
    differences: tuple[PartDifference, ...],
    uncovered: tuple[Uncovered, ...],
) -> str:
    old, new = short_digest(reference.fingerprint), short_digest(record.fingerprint)
    if not differences:
        return f"release {new} is the one that served before this revision; {_what_else_differs(reference, record)}"
    if not uncovered:
        parts = ", ".join(difference.part for difference in differences)
        return f"release {new} was reviewed against {old}: {parts} differ on purpose and passed their tests"
    more = f" (and {len(uncovered) - 1} more)" if len(uncovered) > 1 else ""
    return f"release {new} is not covered by a review against {old}: {uncovered[0].message}{more}"


def _what_else_differs(reference: ReleaseRecord, record: ReleaseRecord) -> str:
    """Of the same release: no fingerprint covers what its pods have to prove, so a record that asks for less must at least be told."""
    if record.golden == reference.golden:
        return "only the pods differ"
    first, *others = compare_golden(reference.golden, record.golden)
    more = f" and {len(others)} more" if others else ""
    return f"its record makes them prove something else ({first.path}{more}; pratique release diff shows it)"


def _served_before(candidate: Candidate, served: Mapping[str, datetime], record_of: RecordOf) -> str | None:
    """The revision, this one or another kept one of the same release, that took traffic already."""
    if candidate.revision in served:
        return candidate.revision
    if candidate.record is None:
        return None
    fingerprint = candidate.record.fingerprint
    for name in sorted(served):
        record = record_of(name)
        if record is not None and record.fingerprint == fingerprint:
            return name
    return None


def _went_back(state: ReviewState, revision: str) -> ReviewState:
    text = f"{state.message}; the release served before (revision {revision}), so it is not held back"
    return replace(state, message=text)


def _hold(state: ReviewState) -> ReviewState:
    remedy = "; pratique release review makes the review" if state.uncovered else ""
    text = f"no pod of it is started (reviewPolicy Block): {state.message}{remedy}"
    return replace(state, message=text, holds=True)
