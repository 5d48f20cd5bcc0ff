"""The status of one service: a pure function of what was observed, the plan, the status before and the time. The only writer.

Conditions, each an observation:
* Ready: the current spec is what serves (entry Service points at its revision, ready pods, endpoints). False names the cause.
* Available: clients get answers, from whichever revision. Unknown while the endpoints are not known.
* Progressing: a rollout or scaling is under way. False with ProgressDeadlineExceeded when it took too long.
* FingerprintVerified: pods of the current revision proved to be the approved release. False names the part that differs; Unknown with
  RecordedNotApproved: they match the first pod's record, which nobody approved.
* ReviewPassed: the current revision's release is covered by a review against the one it replaces, or is the same. Unknown with
  NothingToCompare: it replaces none.
* Degraded: a person should look, whether or not something serves; also at a manifest whose fields were dropped.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pratique_contract import Reason, constants
from pratique_contract.reasons import GATE_REASONS
from pratique_operator import labels, names
from pratique_operator.api.status_types import (
    VERDICTS_MAX,
    Condition,
    ConditionStatus,
    InferenceServiceStatus,
    PodDownload,
    PodVerdict,
    RevisionStatus,
    RolloutStatus,
)
from pratique_operator.desired.revision import Target
from pratique_operator.observe import Snapshot, rollout_state
from pratique_operator.pods.containers import Finding
from pratique_operator.pods.downloads import compute_downloads
from pratique_operator.pods.facts import PodFacts
from pratique_operator.reporting.approval import (
    is_approved,
    recorded_status,
    review_condition,
    review_status,
    verified_condition,
)
from pratique_operator.reporting.dropped import find_dropped
from pratique_operator.reporting.findings import deadline_of, find_failing, find_problem, find_wait
from pratique_operator.rollout.planner import Plan, RolloutState

Manifest = dict[str, Any]
MESSAGE_CHARS_MAX: Final = 2000


@dataclass(frozen=True)
class StatusResult:
    """The new status as it is stored, and when it must be looked at again although nothing changes."""

    value: Manifest
    deadline: datetime | None


@dataclass(frozen=True)
class _Facts:
    """What every condition is made of."""

    snapshot: Snapshot
    plan: Plan
    state: RolloutState
    downloads: tuple[PodDownload, ...]
    problem: Finding | None
    late: bool

    @property
    def target(self) -> str | None:
        return self.state.target

    @property
    def endpoints_ready(self) -> int:
        """Ready endpoints behind the entry Service, whatever their revision."""
        return sum((self.snapshot.endpoints or {}).values())

    @property
    def serves(self) -> bool:
        """The current spec is what serves. Endpoints included: ready pods that nobody routes to serve nothing (dynamo#13622)."""
        return (
            self.target is not None
            and self.snapshot.entry == self.target
            and self.state.ready(self.target) > 0
            and (self.snapshot.endpoints or {}).get(self.target, 0) > 0
        )


def compute_status(snapshot: Snapshot, plan: Plan, *, now: datetime, refused: Finding | None = None) -> StatusResult:
    """``refused`` is what stopped this pass's writes (a name that is taken, an object the API server will not have)."""
    before = snapshot.owner.get("status") or {}
    state = rollout_state(snapshot)
    started_at = _started_at(before, state.target, now)
    downloads = compute_downloads(snapshot.pods, before, now=format_time(now))
    deadline = deadline_of(snapshot, state, plan, started_at, downloads)
    late = deadline is not None and now >= deadline
    facts = _Facts(snapshot, plan, state, downloads, refused or find_problem(snapshot), late)
    serving = _serving(facts)
    pods = snapshot.pods_of(snapshot.entry)
    status = InferenceServiceStatus(
        observed_generation=snapshot.owner["metadata"].get("generation"),
        url=names.url(snapshot.key.name, snapshot.key.namespace),
        replicas=_count_live(pods),
        ready_replicas=sum(pod.ready for pod in pods),
        selector=_selector(snapshot),
        serving=serving,
        candidate=_candidate(facts, serving),
        rollout=_rollout(facts, started_at),
        recorded=recorded_status(snapshot),
        review=review_status(snapshot),
        verdicts=_verdicts(snapshot),
        downloads=downloads,
        conditions=_conditions(facts, before, now),
    )
    value = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return StatusResult(value, None if late else deadline)


def _count_live(pods: tuple[PodFacts, ...]) -> int:
    return sum(not pod.terminating and not pod.ended for pod in pods)


def _started_at(before: Manifest, target: str | None, now: datetime) -> datetime | None:
    """Since when the target is the target: the one fact of a rollout that cannot be derived from what exists."""
    rollout = before.get("rollout") or {}
    if target is None:
        return None
    if rollout.get("target") == target and "startedAt" in rollout:
        return datetime.fromisoformat(rollout["startedAt"])
    return now


def _selector(snapshot: Snapshot) -> str:
    """Pods an autoscaler counts: those of the serving revision, never a candidate's."""
    revision = snapshot.entry or (snapshot.target.revision if snapshot.target is not None else None)
    name = snapshot.key.name
    chosen = labels.service_selector(name) if revision is None else labels.revision_selector(name, revision)
    return labels.selector_text(chosen)


def _serving(facts: _Facts) -> RevisionStatus | None:
    entry, endpoints = facts.snapshot.entry, facts.snapshot.endpoints or {}
    if entry is None or not (facts.state.has_served(entry) or endpoints.get(entry, 0) > 0):
        return None
    return _revision(facts, entry, weight=100 if endpoints.get(entry, 0) > 0 else 0)


def _candidate(facts: _Facts, serving: RevisionStatus | None) -> RevisionStatus | None:
    if facts.target is None or (serving is not None and serving.revision == facts.target):
        return None
    return _revision(facts, facts.target, weight=0)


def _revision(facts: _Facts, revision: str, *, weight: int) -> RevisionStatus:
    deployment = facts.snapshot.deployments().get(revision, {})
    annotations = deployment.get("metadata", {}).get("annotations", {})
    target = facts.snapshot.target
    own = target if target is not None and target.revision == revision else None
    pods = facts.snapshot.pods_of(revision)
    return RevisionStatus(
        revision=revision,
        fingerprint=_fingerprint(own, annotations),
        model_revision=_model_revision(facts.snapshot, revision, own, annotations),
        weight=weight,
        replicas=_count_live(pods),
        ready_replicas=sum(pod.ready for pod in pods),
        verified_replicas=sum(pod.verified for pod in pods),
        approved=is_approved(facts.snapshot) if own else _was_approved(annotations),
    )


def _fingerprint(own: Target | None, annotations: Manifest) -> str | None:
    if own is not None and own.record is not None:
        return own.record.fingerprint
    known = annotations.get(names.ANNOTATION_RECORDED) or annotations.get(constants.ANNOTATION_FINGERPRINT)
    return own.fingerprint or known if own is not None else known


def _model_revision(snapshot: Snapshot, revision: str, own: Target | None, annotations: Manifest) -> str | None:
    """What the model's source is at; of one that cannot be named by what does not move, what its files are recorded as."""
    named = own.model_revision if own else annotations.get(constants.ANNOTATION_MODEL_REVISION)
    if named is not None:
        return str(named)
    record = own.record if own else snapshot.record_of(revision)
    return None if record is None else record.manifest.model.revision


def _was_approved(annotations: Manifest) -> bool:
    """Of a revision that is not the target any more. Enforce approves by naming the fingerprint, TrustFirst leaves a mark."""
    if names.ANNOTATION_DECLARED in annotations:
        return annotations.get(names.ANNOTATION_APPROVED) == "true"
    return constants.ANNOTATION_FINGERPRINT in annotations


def _rollout(facts: _Facts, started_at: datetime | None) -> RolloutStatus:
    last = facts.plan.decisions[0] if facts.plan.decisions else None
    return RolloutStatus(
        phase="Failed" if facts.late else facts.plan.phase,
        target=facts.target,
        started_at=None if started_at is None else format_time(started_at),
        message="" if last is None else f"{last.action} {last.revision}: {last.reason}".strip(),
    )


def _verdicts(snapshot: Snapshot) -> tuple[PodVerdict, ...]:
    found = [
        PodVerdict(
            pod=pod.name,
            revision=pod.revision,
            # A gate's reason is a verdict, also when only the last word of a process that ended is left of it.
            result="Fail" if pod.failure.reason in GATE_REASONS else "Unknown",
            reason=pod.failure.reason,
            message=pod.failure.message[:MESSAGE_CHARS_MAX],
            at=None if pod.verdict is None or pod.verdict.checked_at is None else format_time(pod.verdict.checked_at),
        )
        for pod in find_failing(snapshot)
        if pod.failure is not None
    ]
    return tuple(found[:VERDICTS_MAX])


def _conditions(facts: _Facts, before: Manifest, now: datetime) -> tuple[Condition, ...]:
    cause, snapshot = _cause(facts), facts.snapshot
    made = {
        "Ready": _ready(facts, cause),
        "Available": _available(facts, cause),
        "Progressing": _progressing(facts, cause),
        "FingerprintVerified": verified_condition(snapshot, problem=facts.problem, cause=cause),
        "ReviewPassed": review_condition(snapshot, cause=cause),
        "Degraded": _degraded(facts, cause),
    }
    old = {condition["type"]: condition for condition in before.get("conditions", ())}
    generation = facts.snapshot.owner["metadata"].get("generation")
    return tuple(_condition(name, *value, old.get(name), generation, now) for name, value in made.items())


def _condition(
    name: str, status: ConditionStatus, finding: Finding, old: Manifest | None, generation: int | None, now: datetime
) -> Condition:
    same = old is not None and old.get("status") == status
    return Condition(
        type=name,
        status=status,
        observed_generation=generation,
        last_transition_time=old["lastTransitionTime"] if same and old is not None else format_time(now),
        reason=finding.reason,
        message=finding.message[:MESSAGE_CHARS_MAX],
    )


def _cause(facts: _Facts) -> Finding:
    """Why the current spec does not serve completely: a problem, the deadline, or what it waits for."""
    if facts.problem is not None:
        return facts.problem
    if facts.snapshot.target is None:
        return Finding(Reason.LOADING, "the spec has not been looked at yet")
    wait = find_wait(facts.snapshot, facts.plan, facts.downloads)
    if facts.late:
        return Finding(
            Reason.PROGRESS_DEADLINE_EXCEEDED, f"not ready in time; last known: {wait.reason}: {wait.message}"
        )
    return wait


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"


def _ready(facts: _Facts, cause: Finding) -> tuple[ConditionStatus, Finding]:
    if facts.problem is None and facts.target is not None and facts.state.replicas == 0:
        return "False", Finding(Reason.SCALED_TO_ZERO, "spec.replicas is 0; nothing serves")
    if facts.serves and facts.snapshot.blocked is None:
        ready, wanted = facts.state.ready(facts.target), facts.state.replicas
        return "True", Finding(Reason.RECONCILED, f"revision {facts.target} serves with {ready} of {wanted} pods")
    return "False", cause


def _available(facts: _Facts, cause: Finding) -> tuple[ConditionStatus, Finding]:
    if facts.endpoints_ready > 0:
        text = f"revision {facts.snapshot.entry} answers with {_pods(facts.endpoints_ready)}"
        return "True", Finding(Reason.RECONCILED, text)
    if facts.snapshot.entry is not None and facts.snapshot.endpoints is None:
        return "Unknown", Finding(Reason.LOADING, "the entry Service's endpoints are not known yet")
    if facts.problem is None and facts.target is not None and facts.state.replicas == 0:
        return "False", Finding(Reason.SCALED_TO_ZERO, "spec.replicas is 0; nothing serves")
    return "False", cause


def _progressing(facts: _Facts, cause: Finding) -> tuple[ConditionStatus, Finding]:
    if facts.snapshot.target is None:
        return "False", cause
    if facts.plan.phase == "Complete":
        return "False", Finding(Reason.RECONCILED, f"revision {facts.target} is rolled out")
    if facts.plan.phase == "Paused" or facts.late:
        return "False", cause
    return "True", cause


def _degraded(facts: _Facts, cause: Finding) -> tuple[ConditionStatus, Finding]:
    if facts.problem is None and not facts.late:
        dropped = find_dropped(facts.snapshot.owner)
        if dropped:
            text = f"the API server dropped {', '.join(dropped)} from the manifest: the CRD knows no such field"
            return "True", Finding(Reason.UNKNOWN_FIELDS, text)
        return "False", Finding(Reason.RECONCILED, "nothing is known to be wrong")
    entry = facts.snapshot.entry
    still = f"; revision {entry} goes on serving" if facts.endpoints_ready and entry != facts.target else ""
    return "True", Finding(cause.reason, f"{cause.message}{still}")


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as the API server writes it."""
    return moment.astimezone(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")


def merge_patch(before: Any, after: Any) -> Any:
    """The JSON merge patch from one object to another: what is gone becomes null, lists are replaced whole."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    gone = {key: None for key in before if key not in after}
    changed = {key: merge_patch(before.get(key), value) for key, value in after.items() if before.get(key) != value}
    return {**gone, **changed}
