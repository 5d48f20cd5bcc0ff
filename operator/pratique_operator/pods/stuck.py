"""Pods that do not get as far as a running container: their own object says only ``ContainerCreating`` or nothing; why stands in
Events of the kubelet (a folder or Secret that cannot be mounted, no network) and of the volume controller (a claim without a volume).
Looked up only for pods that are stuck for a while.

What can still pass by itself is a hint; a mount that fails for ``MOUNT_FAILED_AFTER`` is a failure with a reason of its own.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from pratique_contract import Reason
from pratique_operator import kinds
from pratique_operator.cluster import Cluster
from pratique_operator.pods.containers import Finding, clip
from pratique_operator.pods.facts import PodFacts

STUCK_AFTER: Final = timedelta(seconds=10)
MOUNT_FAILED_AFTER: Final = timedelta(seconds=20)
# Making a disk takes a cloud a while.
CLAIM_FAILED_AFTER: Final = timedelta(seconds=60)
PODS_MAX: Final = 5
_MOUNT_REASONS: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})


def explain_stuck(cluster: Cluster, namespace: str, pods: list[PodFacts], *, now: datetime) -> list[PodFacts]:
    """The same pods; of those that are stuck, at most ``PODS_MAX`` with what is known about why."""
    chosen = [pod for pod in pods if _is_stuck(pod, now) or _waits_for_claim(pod, now)][:PODS_MAX]
    explained = {pod.name: _explain(cluster, namespace, pod, now) for pod in chosen}
    return [explained.get(pod.name, pod) for pod in pods]


def _explain(cluster: Cluster, namespace: str, pod: PodFacts, now: datetime) -> PodFacts:
    if _waits_for_claim(pod, now):
        return _explain_claims(cluster, namespace, pod)
    newest = _newest(cluster, namespace, f"involvedObject.uid={pod.uid}")
    # After a warning that is over the kubelet tells of the next step.
    if newest is None or newest.get("type") != "Warning":
        return pod
    words = _words(newest)
    if newest.get("reason") in _MOUNT_REASONS and _age(pod.creating_since, now) >= MOUNT_FAILED_AFTER:
        return replace(pod, finding=Finding(Reason.MOUNT_FAILED, words))
    return replace(pod, hint=words)


def _explain_claims(cluster: Cluster, namespace: str, pod: PodFacts) -> PodFacts:
    """Which claim has no volume: of several, those whose Events say why; without Events, all it could be."""
    told = []
    for claim in pod.claims:
        fields = f"involvedObject.kind=PersistentVolumeClaim,involvedObject.name={claim}"
        found = cluster.list(kinds.EVENT, namespace, fields=fields)
        # Its controller repeats that it waits; a warning says for what, and until the volume is there none is over.
        newest = max(found, key=lambda event: (event.get("type") == "Warning", _last_seen(event)), default=None)
        if newest is not None:
            told.append(f"claim {claim} has no volume: {_words(newest)}")
    if not told:
        scheduler = f": {pod.finding.message}" if pod.finding is not None else ""
        told = [f"no volume for claim {' or '.join(pod.claims)}{scheduler}"]
    return replace(pod, finding=Finding(Reason.MOUNT_FAILED, clip("; ".join(told))))


def _is_stuck(pod: PodFacts, now: datetime) -> bool:
    return pod.creating and not pod.terminating and _age(pod.creating_since, now) >= STUCK_AFTER


def _waits_for_claim(pod: PodFacts, now: datetime) -> bool:
    return pod.claims_unbound and not pod.terminating and _age(pod.created_at, now) >= CLAIM_FAILED_AFTER


def _age(since: datetime | None, now: datetime) -> timedelta:
    return timedelta(0) if since is None else now - since


def _newest(cluster: Cluster, namespace: str, fields: str) -> dict[str, Any] | None:
    return max(cluster.list(kinds.EVENT, namespace, fields=fields), key=_last_seen, default=None)


def _words(event: dict[str, Any]) -> str:
    return clip(f"{event.get('reason', 'Warning')}: {event.get('message', '')}")


def _last_seen(event: dict[str, Any]) -> tuple[str, bool]:
    """RFC 3339 in UTC sorts as text; within the same moment a warning is what matters."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), ""), event.get("type") == "Warning"
