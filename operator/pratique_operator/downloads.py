"""How far the pods are with fetching, as the status tells it. Pure.

A pod that is silent for a moment keeps its last words: absent is not false. What moved last moves the rollout's deadline
(``findings.deadline_of``), and what is *only* progress is not worth a write every few seconds (``is_only_progress``).
"""

from collections.abc import Iterable
from typing import Any, Final

from pratique_contract import Reason
from pratique_operator.pods import PodFacts
from pratique_operator.status_types import DOWNLOADS_MAX, PodDownload

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
