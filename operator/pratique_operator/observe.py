"""Reads everything one pass depends on into one snapshot, and writes nothing. A fact that could not be read is absent, never false:
an error of the API server ends the pass instead of looking like an empty cluster.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pratique_contract import constants
from pratique_contract.record import ReleaseRecord
from pratique_operator import kinds, labels, names
from pratique_operator.api.release_types import ReverifySpec
from pratique_operator.api.types import InferenceServiceSpec, parse_spec
from pratique_operator.cluster import Cluster
from pratique_operator.config import OperatorConfig
from pratique_operator.desired.revision import Target, compute_target
from pratique_operator.errors import InvalidSpecError, RecordError
from pratique_operator.kinds import Key, Kind
from pratique_operator.pods.facts import PodFacts, observe_pod
from pratique_operator.pods.foreign import find_foreign, is_foreign, is_foreign_slice
from pratique_operator.pods.stuck import explain_stuck
from pratique_operator.release.records import ReadRecord, observe_offers, records_by_revision
from pratique_operator.release.references import Reference, References, required_references
from pratique_operator.release.review import Candidate, ReviewState, compute_review, served_at
from pratique_operator.release.trust import (
    Recorded,
    Trust,
    declared_of,
    is_stranger,
    observe_recorded,
    pin_lost,
    unrecorded,
)
from pratique_operator.rollout.planner import RevisionState, RolloutState

Manifest = dict[str, Any]
ChildKey = tuple[str, str]
ReadVerdicts = Callable[[str, list[PodFacts]], list[PodFacts]]


@dataclass(frozen=True)
class Snapshot:
    """The world at one moment. ``target`` None goes with ``blocked``, the error that says why. ``endpoints`` maps a revision to its
    ready endpoints behind the entry Service; None: the entry has no endpoint slice yet. ``review`` None: there is no target to review.
    ``referred`` holds the version of every object of a user that was read, None for one that is not there. ``foreign`` has a sentence
    for whatever else takes the service's traffic; it is in no other fact."""

    key: Key
    owner: Manifest
    spec: InferenceServiceSpec | None
    target: Target | None
    blocked: InvalidSpecError | RecordError | None
    children: Mapping[ChildKey, Manifest] = field(default_factory=dict)
    pods: tuple[PodFacts, ...] = ()
    endpoints: Mapping[str, int] | None = None
    foreign: tuple[str, ...] = ()
    trust: Trust = field(default_factory=Trust)
    review: ReviewState | None = None
    referred: Mapping[Reference, str | None] = field(default_factory=dict)

    @property
    def entry(self) -> str | None:
        """The revision the entry Service selects; None when there is no entry Service."""
        return _entry_of(self.children, self.key)

    def deployments(self) -> dict[str, Manifest]:
        """The Deployment of each revision that has one."""
        return _deployments_of(self.children)

    def record_of(self, revision: str) -> ReleaseRecord | None:
        """The record that this revision's pods read; None when it has none."""
        return records_by_revision(self.key.name, self.children, self.deployments(), self.trust.recorded)(revision)

    def pods_of(self, revision: str | None) -> tuple[PodFacts, ...]:
        return tuple(pod for pod in self.pods if pod.revision == revision)


def _entry_of(children: Mapping[ChildKey, Manifest], key: Key) -> str | None:
    service = children.get((kinds.SERVICE.kind, names.entry(key.name)))
    selector = (service or {}).get("spec", {}).get("selector", {})
    revision = selector.get(constants.LABEL_REVISION)
    return None if revision is None else str(revision)


def _deployments_of(children: Mapping[ChildKey, Manifest]) -> dict[str, Manifest]:
    return {
        child["metadata"]["labels"][constants.LABEL_REVISION]: child
        for (kind, _), child in children.items()
        if kind == kinds.DEPLOYMENT.kind and constants.LABEL_REVISION in child["metadata"].get("labels", {})
    }


def observe_service(
    cluster: Cluster,
    key: Key,
    config: OperatorConfig,
    *,
    read_verdicts: ReadVerdicts,
    read_record: ReadRecord,
    now: datetime,
) -> Snapshot | None:
    """Read the service, its children, pods and endpoints; None when the service is gone, on its way out, or
    another operator's."""
    owner = cluster.get(kinds.INFERENCE_SERVICE, key.namespace, key.name)
    if owner is None or "deletionTimestamp" in owner["metadata"]:
        return None
    if owner["metadata"].get("labels", {}).get(constants.LABEL_OPERATOR, "") != config.operator_name:
        return None
    selector = labels.selector_text(labels.service_selector(key.name))
    children = {
        (kind.kind, child["metadata"]["name"]): child
        for kind in kinds.CHILDREN
        for child in cluster.list(kind, key.namespace, selector)
        if is_owned(child, owner)
    }
    deployments = _deployments_of(children)
    labelled = cluster.list(kinds.POD, key.namespace, selector)
    pods = [observe_pod(pod, now=now) for pod in labelled if not is_foreign(pod)]
    recorded = pin_lost(observe_recorded(children), alive=_alive(deployments, pods))
    spec, invalid = _observe_spec(owner)
    objects = (
        {} if spec is None else {r: _observe_reference(cluster, key, r) for r in sorted(required_references(spec))}
    )
    target, blocked = (None, invalid) if spec is None else _observe_target(key, spec, objects, config, recorded)
    to_record = unrecorded(deployments, recorded)
    failures_max = _failures_max(spec)
    pods = [
        replace(
            pod,
            audited=pod.revision in to_record,
            failures_max=failures_max,
            release=_release_of(pod.revision, deployments, target),
        )
        for pod in pods
    ]
    pods = explain_stuck(cluster, key.namespace, read_verdicts(key.namespace, pods), now=now)
    slices = _list_slices(cluster, key)
    return Snapshot(
        key=key,
        owner=owner,
        spec=spec,
        target=target,
        blocked=blocked,
        children=children,
        pods=tuple(sorted(pods, key=lambda pod: pod.name)),
        endpoints=_observe_endpoints(slices, pods),
        foreign=find_foreign(labelled, slices),
        trust=Trust(recorded, observe_offers(key.namespace, deployments, recorded, pods, read_record)),
        review=observe_review(key, spec, target, children, recorded, pods),
        referred={r: None if found is None else found["metadata"]["resourceVersion"] for r, found in objects.items()},
    )


def _alive(deployments: Mapping[str, Manifest], pods: list[PodFacts]) -> frozenset[str]:
    """Declared releases of which a pod is there to stay."""
    staying = {pod.revision for pod in pods if not pod.terminating and not pod.ended}
    found = {declared_of(deployment) for revision, deployment in deployments.items() if revision in staying}
    return frozenset(declared for declared in found if declared is not None)


def observe_review(
    key: Key,
    spec: InferenceServiceSpec | None,
    target: Target | None,
    children: Mapping[ChildKey, Manifest],
    recorded: Mapping[str, Recorded],
    pods: list[PodFacts],
) -> ReviewState | None:
    """The review of the target against what it replaces; None when there is no target."""
    if spec is None or target is None:
        return None
    entry, deployments = _entry_of(children, key), _deployments_of(children)
    return compute_review(
        Candidate(target.revision, target.record, target.record_ref),
        deployments,
        entry=entry,
        entry_ready=any(pod.ready for pod in pods if pod.revision == entry),
        record_of=records_by_revision(key.name, children, deployments, recorded),
        blocks=spec.release.review_policy == "Block",
    )


def is_owned(child: Manifest, owner: Manifest) -> bool:
    """Whether the child belongs to this very service: by UID, because a deleted one's children may still be around."""
    return any(
        reference.get("controller") and reference["uid"] == owner["metadata"]["uid"]
        for reference in child["metadata"].get("ownerReferences", ())
    )


def _observe_spec(owner: Manifest) -> tuple[InferenceServiceSpec | None, InvalidSpecError | None]:
    try:
        return parse_spec(owner.get("spec", {})), None
    except InvalidSpecError as error:
        return None, error


def _observe_target(
    key: Key,
    spec: InferenceServiceSpec,
    objects: Mapping[Reference, Manifest | None],
    config: OperatorConfig,
    recorded: Mapping[str, Recorded],
) -> tuple[Target | None, InvalidSpecError | RecordError | None]:
    try:
        found = compute_target(
            spec, References(objects), service=key.name, namespace=key.namespace, config=config, recorded=recorded
        )
    except (InvalidSpecError, RecordError) as error:
        return None, error
    return found, None


def _observe_reference(cluster: Cluster, key: Key, reference: Reference) -> Manifest | None:
    return cluster.get(kinds.BY_NAME[reference.kind], key.namespace, reference.name)


def _failures_max(spec: InferenceServiceSpec | None) -> int:
    chosen = None if spec is None else spec.release.reverify
    return (chosen or ReverifySpec()).failures


def _release_of(revision: str, deployments: Mapping[str, Manifest], target: Target | None) -> str | None:
    """The fingerprint that this revision's pods have to be, where that is known; under TrustFirst nobody may have approved it."""
    annotations = deployments.get(revision, {}).get("metadata", {}).get("annotations", {})
    named = annotations.get(constants.ANNOTATION_FINGERPRINT)
    if named is None and target is not None and target.revision == revision and target.declared is None:
        return target.record.fingerprint if target.record is not None else None
    return None if named is None else str(named)


def _list_slices(cluster: Cluster, key: Key) -> list[Manifest]:
    selector = labels.selector_text({"kubernetes.io/service-name": names.entry(key.name)})
    return cluster.list(kinds.ENDPOINT_SLICE, key.namespace, selector)


def _observe_endpoints(slices: list[Manifest], pods: list[PodFacts]) -> dict[str, int] | None:
    """Ready endpoints behind the entry Service per revision, by the pods they name."""
    slices = [part for part in slices if not is_foreign_slice(part)]
    if not slices:
        return None
    revision_of = {pod.name: pod.revision for pod in pods}
    found: dict[str, int] = {}
    for endpoint in (endpoint for part in slices for endpoint in part.get("endpoints") or ()):
        revision = revision_of.get(endpoint.get("targetRef", {}).get("name", ""))
        # A missing "ready" means unknown, which Kubernetes says to take as ready.
        if revision is not None and endpoint.get("conditions", {}).get("ready") is not False:
            found[revision] = found.get(revision, 0) + 1
    return found


def rollout_state(snapshot: Snapshot) -> RolloutState:
    """What the planner needs of the snapshot, as plain counts."""
    spec = snapshot.spec
    deployments = snapshot.deployments()
    return RolloutState(
        target=None if snapshot.target is None else snapshot.target.revision,
        replicas=_wanted_replicas(snapshot),
        strategy="Rolling" if spec is None else spec.rollout.strategy,
        paused=False if spec is None else spec.rollout.paused,
        history_limit=20 if spec is None else spec.rollout.revision_history_limit,
        entry=snapshot.entry,
        traffic=_traffic(snapshot),
        revisions={
            revision: _revision_state(deployment, snapshot.pods_of(revision), _able(snapshot, revision, deployment))
            for revision, deployment in sorted(deployments.items())
        },
        review=snapshot.review.message if snapshot.review is not None and snapshot.review.holds else None,
        pods_max=_pods_max(snapshot, deployments),
    )


def _wanted_replicas(snapshot: Snapshot) -> int:
    """What the scale subresource says: known even when the rest of the spec cannot be read; else what there is."""
    if snapshot.spec is not None:
        return snapshot.spec.replicas
    stored = snapshot.owner.get("spec", {}).get("replicas")
    if isinstance(stored, int) and not isinstance(stored, bool) and stored >= 0:
        return stored
    serving = snapshot.deployments().get(snapshot.entry or "", {})
    return int(serving.get("spec", {}).get("replicas", 0))


def _pods_max(snapshot: Snapshot, deployments: Mapping[str, Manifest]) -> dict[str, int]:
    """Revisions under TrustFirst without a kept record: one pod before the first record; after its loss no more than there are."""
    recorded = snapshot.trust.recorded
    missing = unrecorded(deployments, recorded)
    target = snapshot.target
    if target is not None and target.declared is not None and target.record is None:
        missing[target.revision] = target.declared
    return {
        revision: max(1, _replicas(deployments.get(revision))) if declared in recorded else 1
        for revision, declared in missing.items()
    }


def _replicas(deployment: Manifest | None) -> int:
    return 0 if deployment is None else int(deployment.get("spec", {}).get("replicas", 0))


def _traffic(snapshot: Snapshot) -> frozenset[str] | None:
    if snapshot.entry is None:
        return frozenset()
    return None if snapshot.endpoints is None else frozenset(snapshot.endpoints)


def _able(snapshot: Snapshot, revision: str, deployment: Manifest) -> tuple[PodFacts, ...]:
    """The pods that count as ready. Of the revision that serves: whatever answers, since a fault found later takes no traffic from it by
    itself. To take over needs more: one whose pods have begun to answer otherwise, or have passed as another release, does not."""
    ready = (pod for pod in snapshot.pods_of(revision) if pod.ready)
    if revision == snapshot.entry:
        return tuple(ready)
    recorded = snapshot.trust.recorded.get(declared_of(deployment) or "")
    return tuple(pod for pod in ready if pod.verified and not is_stranger(pod, recorded))


def _revision_state(deployment: Manifest, pods: tuple[PodFacts, ...], able: tuple[PodFacts, ...]) -> RevisionState:
    return RevisionState(
        replicas=_replicas(deployment),
        pods=sum(not pod.ended for pod in pods),
        ready=len(able),
        waiting=sum(pod.waits_for_capacity for pod in pods),
        served_at=served_at(deployment),
    )


def children_of(snapshot: Snapshot, revision: str) -> list[tuple[Kind, Manifest]]:
    """Every child that carries the revision's label."""
    return [
        (kinds.BY_NAME[kind], child)
        for (kind, _), child in snapshot.children.items()
        if child["metadata"].get("labels", {}).get(constants.LABEL_REVISION) == revision
    ]
