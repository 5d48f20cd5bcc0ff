"""What the status says about approval: the conditions FingerprintVerified and ReviewPassed, and what of TrustFirst and of the review needs
a person. Pure.

FingerprintVerified is Unknown, not True, while pods match a record that nobody approved: they are one release, and whether it is the right
one nobody said. It is not False either: nothing is known to be wrong.
"""

from typing import Final

from pratique_contract import Reason
from pratique_contract.canonical import short_digest
from pratique_contract.reasons import GATE_REASONS
from pratique_operator.api.status_types import (
    UNCOVERED_MAX,
    ConditionStatus,
    DifferenceStatus,
    RecordedStatus,
    ReviewStatus,
    UncoveredStatus,
)
from pratique_operator.errors import OtherRecordedError
from pratique_operator.observe import Snapshot
from pratique_operator.pods.containers import Finding
from pratique_operator.release.trust import Recorded, find_stranger

MESSAGE_CHARS_MAX: Final = 500
# A gate that broke has learned nothing about the release.
_REFUSED: Final = (GATE_REASONS - {Reason.GATE_FAILED}) | {
    Reason.RECORD_MISSING,
    Reason.SIGNATURE_INVALID,
    Reason.UNVERIFIED_ENDPOINT,
}


def find_hold(snapshot: Snapshot) -> Finding | None:
    """The review that keeps the target from being started."""
    review = snapshot.review
    return None if review is None or not review.holds else Finding(Reason.REVIEW_REQUIRED, review.message)


def find_trust_problem(snapshot: Snapshot) -> Finding | None:
    """What is wrong with the record of the target under TrustFirst."""
    target = snapshot.target
    if target is None or target.declared is None:
        return None
    recorded = snapshot.trust.recorded.get(target.declared)
    stranger = find_stranger(snapshot.pods_of(target.revision), recorded)
    if stranger is not None:
        return stranger
    offer = snapshot.trust.offer_of(target.revision)
    if offer is not None and offer.problem is not None:
        return offer.problem
    if recorded is None or recorded.record is not None or (offer is not None and offer.record is not None):
        return None
    return Finding(Reason.RECORD_MISSING, f"{recorded.problem}; no pod is added until a running one gives it again")


def find_recording(snapshot: Snapshot) -> Finding | None:
    """The first pod has passed and waits to be recorded."""
    target = snapshot.target
    offer = None if target is None else snapshot.trust.offer_of(target.revision)
    if offer is None or offer.waits is None:
        return None
    return Finding(Reason.VERIFYING, f"{offer.waits}; more pods start after that")


def is_approved(snapshot: Snapshot) -> bool:
    """Whether the target's release is the one that somebody named in the spec."""
    target, spec = snapshot.target, snapshot.spec
    if target is None or spec is None or spec.release.fingerprint is None:
        return False
    recorded = snapshot.trust.recorded.get(target.declared or "")
    if recorded is not None:
        return recorded.fingerprint == spec.release.fingerprint
    known = target.fingerprint if target.record is None else target.record.fingerprint
    return known == spec.release.fingerprint


def verified_condition(
    snapshot: Snapshot, *, problem: Finding | None, cause: Finding
) -> tuple[ConditionStatus, Finding]:
    """FingerprintVerified."""
    if problem is not None and problem.reason in _REFUSED:
        return "False", problem
    target = snapshot.target
    pods = snapshot.pods_of(target.revision) if target is not None else ()
    count = sum(pod.verified for pod in pods)
    if target is None or count == 0:
        return "Unknown", Finding(cause.reason, f"no pod of the current revision has passed: {cause.message}")
    pods_text = "1 pod" if count == 1 else f"{count} pods"
    if target.declared is None or is_approved(snapshot):
        return "True", Finding(Reason.VERIFIED, f"{pods_text} of revision {target.revision} proved to be the release")
    recorded = snapshot.trust.kept(target.declared)
    if recorded is None:
        recording = find_recording(snapshot)
        text = recording.message if recording is not None else "its first pod has passed and is not recorded yet"
        return "Unknown", Finding(Reason.VERIFYING, f"nobody approved what is served, and {text}")
    return "Unknown", Finding(Reason.RECORDED_NOT_APPROVED, not_approved(snapshot, recorded, pods_text))


def not_approved(snapshot: Snapshot, recorded: Recorded, pods: str) -> str:
    """What is recorded, where, and the command that approves it."""
    key = snapshot.key
    return (
        f"{pods} proved to be release {short_digest(recorded.fingerprint)}, recorded from the first pod (ConfigMap "
        f"{recorded.config_map}) and approved by nobody: pratique release approve {key.name} -n {key.namespace}"
    )


def review_condition(snapshot: Snapshot, *, cause: Finding) -> tuple[ConditionStatus, Finding]:
    """ReviewPassed."""
    review = snapshot.review
    if review is None:
        return "Unknown", Finding(cause.reason, f"there is nothing to review: {cause.message}")
    return review.status, Finding(review.reason, review.message)


def recorded_status(snapshot: Snapshot) -> RecordedStatus | None:
    """What is recorded for what is declared; None when nothing is, or another policy decides."""
    other = snapshot.blocked
    if isinstance(other, OtherRecordedError):
        return RecordedStatus(record_ref=other.config_map, fingerprint=other.fingerprint, approved=False)
    target = snapshot.target
    recorded = None if target is None or target.declared is None else snapshot.trust.recorded.get(target.declared)
    if recorded is None:
        return None
    return RecordedStatus(
        record_ref=recorded.config_map, fingerprint=recorded.fingerprint, approved=is_approved(snapshot)
    )


def review_status(snapshot: Snapshot) -> ReviewStatus | None:
    """The two releases and how they differ; None when there are no two."""
    review = snapshot.review
    if review is None or review.reference is None:
        return None
    return ReviewStatus(
        reference=review.reference,
        record_ref=review.record_ref,
        differences=tuple(
            DifferenceStatus(part=found.part, message=found.message[:MESSAGE_CHARS_MAX]) for found in review.differences
        ),
        uncovered=tuple(
            UncoveredStatus(part=found.part, message=found.message[:MESSAGE_CHARS_MAX]) for found in review.uncovered
        )[:UNCOVERED_MAX],
    )
