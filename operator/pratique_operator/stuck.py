"""Pods that are scheduled but whose container does not start: the pod's own object says only ``ContainerCreating``; why stands in the
kubelet's Events (a folder or Secret that cannot be mounted, no network). Looked up only for pods that are stuck for a while."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from pratique_operator import kinds
from pratique_operator.cluster import Cluster
from pratique_operator.pods import PodFacts, clip

STUCK_AFTER: Final = timedelta(seconds=10)
PODS_MAX: Final = 5


def explain_stuck(cluster: Cluster, namespace: str, pods: list[PodFacts], *, now: datetime) -> list[PodFacts]:
    """The same pods, those that are stuck with the newest warning about them as a hint."""
    stuck = [pod for pod in pods if _is_stuck(pod, now)][:PODS_MAX]
    hints = {pod.name: _newest_warning(cluster, namespace, pod) for pod in stuck}
    return [replace(pod, hint=hints.get(pod.name)) for pod in pods]


def _is_stuck(pod: PodFacts, now: datetime) -> bool:
    return pod.creating and pod.created_at is not None and now - pod.created_at >= STUCK_AFTER


def _newest_warning(cluster: Cluster, namespace: str, pod: PodFacts) -> str | None:
    found = cluster.list(kinds.EVENT, namespace, fields=f"involvedObject.uid={pod.uid},type=Warning")
    if not found:
        return None
    newest = max(found, key=_last_seen)
    return clip(f"{newest.get('reason', 'Warning')}: {newest.get('message', '')}")


def _last_seen(event: dict[str, Any]) -> str:
    """RFC 3339 in UTC sorts as text."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), "")
