"""Kubernetes Events on the service: what changed for a person between two statuses. Pure but for ``post``.

An event's name is a hash of service, revision and reason, so the same cause is told once, however often it comes and goes and
however often the operator restarts; the API server forgets it after its retention time (one hour by default).
"""

import logging
from dataclasses import dataclass
from typing import Any, Final, Literal

from pratique_contract import Reason, constants
from pratique_contract.canonical import digest_json, short_digest
from pratique_operator import kinds
from pratique_operator.cluster import Cluster
from pratique_operator.errors import ConflictError, OperatorError

LOG = logging.getLogger(__name__)

Manifest = dict[str, Any]
MESSAGE_CHARS_MAX: Final = 1000


@dataclass(frozen=True)
class ServiceEvent:
    """One thing to tell. ``revision`` makes the same reason of another revision another event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    revision: str


def compute_events(before: Manifest, after: Manifest) -> tuple[ServiceEvent, ...]:
    """What ``after`` says that ``before`` did not: new failure reasons, a wait for capacity, another serving revision."""
    target = (after.get("rollout") or {}).get("target") or ""
    found: list[ServiceEvent] = []
    known = {(v["revision"], v["reason"]) for v in before.get("verdicts", ())}
    for verdict in after.get("verdicts", ()):
        identity = (verdict["revision"], verdict["reason"])
        if identity not in known:
            known.add(identity)
            text = f"pod {verdict['pod']}: {verdict['message']}"
            found.append(ServiceEvent("Warning", verdict["reason"], text, verdict["revision"]))
    degraded, was = _condition(after, "Degraded"), _condition(before, "Degraded")
    if degraded.get("status") == "True" and _differs(degraded, was) and (target, degraded["reason"]) not in known:
        found.append(ServiceEvent("Warning", degraded["reason"], degraded["message"], target))
    progressing, was = _condition(after, "Progressing"), _condition(before, "Progressing")
    if progressing.get("reason") == Reason.WAITING_FOR_CAPACITY and _differs(progressing, was):
        found.append(ServiceEvent("Warning", progressing["reason"], progressing["message"], target))
    found += _approval_events(before, after, target)
    serving, served = after.get("serving") or {}, before.get("serving") or {}
    if serving.get("weight") == 100 and serving.get("revision") != served.get("revision"):
        came_from = f", after revision {served['revision']}" if served else ""
        text = f"revision {serving['revision']} takes traffic{came_from}"
        found.append(ServiceEvent("Normal", Reason.PROMOTED, text, serving["revision"]))
    return tuple(found)


def _approval_events(before: Manifest, after: Manifest, target: str) -> list[ServiceEvent]:
    """A release was recorded, anew or for the first time, or approved; a candidate turned out not to be covered by a review."""
    found: list[ServiceEvent] = []
    recorded, known = after.get("recorded") or {}, before.get("recorded") or {}
    fingerprint = recorded.get("fingerprint")
    if recorded.get("approved") and not (known.get("approved") and known.get("fingerprint") == fingerprint):
        found.append(ServiceEvent("Normal", Reason.VERIFIED, f"release {fingerprint} is approved", target))
    elif recorded and (known.get("recordRef"), known.get("fingerprint")) != (recorded["recordRef"], fingerprint):
        text = f"release {fingerprint} was recorded from its first pod (ConfigMap {recorded['recordRef']}); nobody approved it"
        if known and known["recordRef"] != recorded["recordRef"]:
            text += f"; what is declared changed: before it was {known['fingerprint']}"
        found.append(ServiceEvent("Normal", Reason.RECORDED_NOT_APPROVED, text, target))
    review, was = _condition(after, "ReviewPassed"), _condition(before, "ReviewPassed")
    if review.get("status") == "False" and (_differs(review, was) or review["message"] != was.get("message")):
        found.append(ServiceEvent("Warning", review["reason"], review["message"], target))
    return found


def _condition(status: Manifest, name: str) -> Manifest:
    return next((c for c in status.get("conditions", ()) if c["type"] == name), {})


def _differs(one: Manifest, other: Manifest) -> bool:
    return (one.get("status"), one.get("reason")) != (other.get("status"), other.get("reason"))


def build_event(owner: Manifest, event: ServiceEvent, *, now: str) -> Manifest:
    """The Event object."""
    metadata = owner["metadata"]
    identity = digest_json([metadata["uid"], event.revision, event.reason])
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{short_digest(identity)}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": constants.API_VERSION,
            "kind": constants.KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MESSAGE_CHARS_MAX],
        "source": {"component": constants.FIELD_MANAGER},
        "reportingComponent": constants.FIELD_MANAGER,
        "reportingInstance": constants.FIELD_MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def post_events(cluster: Cluster, owner: Manifest, events: tuple[ServiceEvent, ...], *, now: str) -> None:
    """Post each event once. Events are for people; failing to post one never fails a pass."""
    for event in events:
        try:
            cluster.create(kinds.EVENT, owner["metadata"]["namespace"], build_event(owner, event, now=now))
        except ConflictError:
            continue
        except OperatorError as error:
            LOG.warning("Event was not posted: %s: %s", event.reason, error)
