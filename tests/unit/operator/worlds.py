"""Builders of API objects and snapshots for the operator's unit tests."""

from datetime import UTC, datetime
from typing import Any

from pratique_contract import Reason, Verdict, VerdictResult, constants
from pratique_operator import kinds, labels, names
from pratique_operator.api.types import parse_spec
from pratique_operator.config import OperatorConfig
from pratique_operator.desired.revision import Target, compute_target
from pratique_operator.errors import InvalidSpecError, RecordError
from pratique_operator.kinds import Key
from pratique_operator.observe import Snapshot, observe_review
from pratique_operator.pods.facts import PodFacts
from pratique_operator.release.records import observe_offers
from pratique_operator.release.references import References
from pratique_operator.release.trust import RecordAnswer, Recorded, Trust, observe_recorded

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = Key("ns", "svc")
CONFIG = OperatorConfig(server_image="registry/server:1", allow_file_sources=True)
Manifest = dict[str, Any]


def make_owner(**spec: Any) -> Manifest:
    return {
        "metadata": {"name": "svc", "namespace": "ns", "uid": "u-1", "generation": 3, "resourceVersion": "7"},
        "spec": {"model": {"uri": "file:///models/x"}, **spec},
    }


def make_target(
    references: References | None = None, recorded: dict[str, Recorded] | None = None, **spec: Any
) -> Target:
    value = parse_spec(make_owner(**spec)["spec"])
    found = references or References()
    return compute_target(value, found, service="svc", namespace="ns", config=CONFIG, recorded=recorded)


def make_deployment(
    revision: str, *, replicas: int = 1, served: bool = False, marks: Manifest | None = None, **status: Any
) -> Manifest:
    annotations = {names.ANNOTATION_SERVED_AT: "2026-01-01T00:00:00Z"} if served else {}
    annotations |= marks or {}
    return {
        "metadata": {
            "name": names.revision_child("svc", revision),
            "labels": labels.revision_labels("svc", revision),
            "annotations": annotations,
        },
        "spec": {"replicas": replicas},
        "status": status,
    }


def make_entry(revision: str) -> Manifest:
    return {"metadata": {"name": "svc"}, "spec": {"selector": labels.revision_selector("svc", revision)}}


def make_pod(revision: str, name: str = "p", **facts: Any) -> PodFacts:
    return PodFacts(name=name, revision=revision, address="10.0.0.1", **facts)


def ready_pod(revision: str, name: str = "p") -> PodFacts:
    return make_pod(revision, name, ready=True, running=True)


def failing_pod(revision: str, reason: Reason, message: str, name: str = "p") -> PodFacts:
    verdict = Verdict(result=VerdictResult.FAIL, reason=reason, message=message, checked_at=NOW)
    return make_pod(revision, name, running=True, verdict=verdict)


def make_snapshot(
    *,
    spec: Manifest | None = None,
    status: Manifest | None = None,
    entry: str | None = None,
    deployments: tuple[Manifest, ...] = (),
    pods: tuple[PodFacts, ...] = (),
    endpoints: dict[str, int] | None = None,
    blocked: InvalidSpecError | RecordError | None = None,
    config_maps: tuple[Manifest, ...] = (),
    references: References | None = None,
    answer: RecordAnswer | None = None,
) -> Snapshot:
    """As ``observe_service`` makes it; ``answer`` is what every pod says when it is asked for its record."""
    owner = make_owner(**(spec or {}))
    if status is not None:
        owner["status"] = status
    children = {(kinds.DEPLOYMENT.kind, d["metadata"]["name"]): d for d in deployments}
    if entry is not None:
        children[kinds.SERVICE.kind, "svc"] = make_entry(entry)
    children |= {(kinds.CONFIG_MAP.kind, c["metadata"]["name"]): c for c in config_maps}
    parsed, recorded = parse_spec(owner["spec"]), observe_recorded(children)
    target = None if blocked is not None else make_target(references, recorded, **(spec or {}))
    by_revision = {d["metadata"]["labels"][constants.LABEL_REVISION]: d for d in deployments}
    offers = observe_offers("ns", by_revision, recorded, pods, lambda _namespace, _pod: answer or RecordAnswer(None))
    return Snapshot(
        key=KEY,
        owner=owner,
        spec=parsed,
        target=target,
        blocked=blocked,
        children=children,
        pods=pods,
        endpoints=endpoints,
        trust=Trust(recorded, offers),
        review=observe_review(KEY, parsed, target, children, recorded, list(pods)),
    )
