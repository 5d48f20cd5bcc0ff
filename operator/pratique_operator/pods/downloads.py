"""How far the pods are with fetching, as the status tells it. Pure.

A pod that is silent for a moment keeps its last words: absent is not false. What moved last moves the rollout's deadline
(``findings.deadline_of``), and what is *only* progress is not worth a write every few seconds (``Pace``).
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from pratique_contract import Reason
from pratique_operator.api.status_types import DOWNLOADS_MAX, PodDownload
from pratique_operator.pods.facts import PodFacts

Manifest = dict[str, Any]

SILENT: Final = "fetches and has not said how far it is"


def compute_downloads(pods: Iterable[PodFacts], before: Manifest, *, now: str) -> tuple[PodDownload, ...]:
    """One entry for each pod that fetches; ``progressed_at`` moves when its words do."""
    known = {entry["pod"]: entry for entry in before.get("downloads", ())}
    found = []
    for pod in pods:
        if not pod.fetching or pod.terminating:
            continue
        old = known.get(pod.name, {})
        message = pod.download or old.get("message", SILENT)
        same = old.get("message") == message
        found.append(
            PodDownload(
                pod=pod.name,
                revision=pod.revision,
                message=message,
                progressed_at=old["progressedAt"] if same else now,
            )
        )
    return tuple(found[:DOWNLOADS_MAX])


_K = TypeVar("_K")


class Pace(Generic[_K]):
    """When each service's status was last written while it downloads. Lost with the process, which costs one write."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._told_at: dict[_K, datetime] = {}

    def may_wait(self, key: _K, before: Manifest, after: Manifest, now: datetime) -> bool:
        """Whether writing ``after`` can be left to a later pass."""
        told_at = self._told_at.get(key)
        recently = told_at is not None and (now - told_at).total_seconds() < self._seconds
        return recently and is_only_progress(before, after)

    def remember(self, key: _K, written: Manifest, now: datetime) -> None:
        if written.get("downloads"):
            self._told_at[key] = now
        else:
            self.forget(key)

    def forget(self, key: _K) -> None:
        self._told_at.pop(key, None)


def is_only_progress(before: Manifest, after: Manifest) -> bool:
    """Whether two statuses differ in nothing but how far a fetch is."""
    return bool(before.get("downloads")) and _without_progress(before) == _without_progress(after)


def _without_progress(status: Manifest) -> Manifest:
    conditions = [
        {**condition, "message": ""} if condition["reason"] == Reason.DOWNLOADING else condition
        for condition in status.get("conditions", ())
    ]
    downloads = [(entry["pod"], entry["revision"]) for entry in status.get("downloads", ())]
    return {**status, "conditions": conditions, "downloads": downloads}
