"""``pratique status``: what serves, what is wanted, and why they differ, on one screen."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from pratique_cli.errors import EXIT_NO
from pratique_cli.printing import Format, emit, format_table, say


def status(
    service: Annotated[str, typer.Argument(help="Name of the InferenceService.")],
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Default: the context's.")] = None,
    context: Annotated[str | None, typer.Option(help="Kubeconfig context.")] = None,
    form: Annotated[Format, typer.Option("--output", "--format", "-o", help="How to print it.")] = Format.TEXT,
) -> None:
    """Show what serves, what is wanted and why pods are refused. Ends with 1 when the service is not ready."""
    from pratique_cli.kube import Cluster

    cluster = Cluster(context=context)
    resource = cluster.get_service(service, namespace or cluster.namespace)
    if form is Format.TEXT:
        say(describe(resource, now=datetime.now(UTC)))
    else:
        emit(resource, form)
    if not is_ready(resource):
        raise typer.Exit(EXIT_NO)


def is_ready(resource: Mapping[str, Any]) -> bool:
    """Whether the operator has seen this very spec and found it ready."""
    ready = _condition(resource, "Ready")
    seen = resource.get("status", {}).get("observedGeneration")
    return ready.get("status") == "True" and seen == resource["metadata"].get("generation")


def describe(resource: Mapping[str, Any], *, now: datetime) -> str:
    """The whole screen. Pure."""
    metadata, observed = resource["metadata"], resource.get("status") or {}
    ready = _condition(resource, "Ready")
    stale = (
        "" if observed.get("observedGeneration") == metadata.get("generation") else " (the newest spec is not seen yet)"
    )
    reason = ready.get("reason", "not observed yet")
    sentence = ready.get("message", "the operator has not written a status")
    lines = [
        f"Service:   {metadata.get('namespace')}/{metadata['name']}",
        f"Ready:     {ready.get('status', 'Unknown')}  {reason}: {sentence}{stale}",
        f"Approved:  {_approved(resource)}",
        f"URL:       {observed.get('url') or '-'}",
    ]
    rollout = observed.get("rollout")
    if rollout:
        lines.append(f"Rollout:   {rollout.get('phase')}  {rollout.get('message', '')}".rstrip())
    return "\n".join(
        [
            *lines,
            "",
            _revisions(observed),
            *_conditions(observed, now),
            *_review(observed),
            *_verdicts(observed),
            *_downloads(observed, now),
        ]
    )


def _approved(resource: Mapping[str, Any]) -> str:
    """What somebody approved; a record alone approves nothing. Under TrustFirst without that, what to do about it."""
    release, metadata = resource.get("spec", {}).get("release") or {}, resource["metadata"]
    recorded = (resource.get("status") or {}).get("recorded")
    if release.get("fingerprint"):
        return str(release["fingerprint"])
    if recorded:
        where = f"{metadata['name']} -n {metadata.get('namespace')}"
        return f"nothing; recorded {recorded['fingerprint']} (ConfigMap {recorded['recordRef']}): pratique release approve {where}"
    return "nothing"


def _review(observed: Mapping[str, Any]) -> list[str]:
    """What no review covers; one line when all of it is covered."""
    review = observed.get("review")
    if not review or not review.get("differences"):
        return []
    rows = [(found.get("part"), found.get("message")) for found in review.get("uncovered", [])]
    against = review["reference"].removeprefix("sha256:")[:12]
    if not rows:
        return ["", f"Review:    every difference from release {against} is covered"]
    return ["", format_table((f"NOT REVIEWED AGAINST {against}", "WHAT IS MISSING"), rows)]


def _revisions(observed: Mapping[str, Any]) -> str:
    header = ("", "REVISION", "FINGERPRINT", "APPROVED", "WEIGHT", "REPLICAS", "READY", "VERIFIED")
    rows = []
    for role in ("serving", "candidate"):
        revision = observed.get(role)
        if revision:
            fingerprint = (revision.get("fingerprint") or "").removeprefix("sha256:")[:12]
            # What is declared; without a verified pod nothing has been found to be that.
            fingerprint += " (not proved)" if fingerprint and not revision.get("verifiedReplicas") else ""
            counts = [revision.get(name) for name in ("replicas", "readyReplicas", "verifiedReplicas")]
            approved = {True: "yes", False: "no"}.get(revision.get("approved"))
            weight = f"{revision.get('weight', 0)}%"
            rows.append((role, revision.get("revision"), fingerprint, approved, weight, *counts))
        else:
            rows.append((role, *[None] * 7))
    return format_table(header, rows)


def _conditions(observed: Mapping[str, Any], now: datetime) -> list[str]:
    rows = [
        (c.get("type"), c.get("status"), c.get("reason"), _age(c.get("lastTransitionTime"), now), message)
        for c, message in _each_sentence_once(observed.get("conditions", []))
    ]
    return ["", format_table(("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"), rows)] if rows else []


def _each_sentence_once(conditions: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    """One cause is told by up to five conditions: in full by the first, by that one's name in every later one."""
    told: dict[str, str] = {}
    for condition in conditions:
        message, kind = condition.get("message"), str(condition.get("type"))
        known = next((sentence for sentence in told if message and sentence in message), None)
        yield condition, message.replace(known, f"as {told[known]}") if message and known else message
        if message and not known:
            told[message] = kind


def _verdicts(observed: Mapping[str, Any]) -> list[str]:
    rows = [
        (v.get("pod"), v.get("revision"), v.get("result"), v.get("reason"), v.get("message"))
        for v in observed.get("verdicts", [])
    ]
    return ["", format_table(("POD NOT VERIFIED", "REVISION", "RESULT", "REASON", "MESSAGE"), rows)] if rows else []


def _downloads(observed: Mapping[str, Any], now: datetime) -> list[str]:
    rows = [
        (d.get("pod"), d.get("revision"), _age(d.get("progressedAt"), now), d.get("message"))
        for d in observed.get("downloads", [])
    ]
    return ["", format_table(("POD DOWNLOADING", "REVISION", "LAST MOVE", "PROGRESS"), rows)] if rows else []


def _condition(resource: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = (resource.get("status") or {}).get("conditions", [])
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def _age(moment: str | None, now: datetime) -> str | None:
    """How long ago, in the two digits kubectl would show."""
    if moment is None:
        return None
    seconds = max(int((now - datetime.fromisoformat(moment)).total_seconds()), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
