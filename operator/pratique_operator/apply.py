"""The only writes to children. Server-side apply with one field manager, skipped when the observed object already holds the intent; what
others added that may not be there is patched out (``drift.py``);
deletes name an object by UID, so that nothing else can be meant.
"""

import logging
from typing import Any

from pratique_operator import kinds, metrics, names
from pratique_operator.api.types import InferenceServiceSpec
from pratique_operator.cluster import Cluster
from pratique_operator.desired import children as build
from pratique_operator.desired.revision import Target
from pratique_operator.drift import contains, find_excess, name_fields
from pratique_operator.errors import ChildConflictError, ConflictError, NotFoundError, RejectedError
from pratique_operator.kinds import Kind
from pratique_operator.network import NetworkAccess
from pratique_operator.observe import Snapshot, children_of, is_owned
from pratique_operator.release.trust import declared_of, stale_config_maps
from pratique_operator.rollout.planner import Plan

LOG = logging.getLogger(__name__)

Manifest = dict[str, Any]


def apply_plan(cluster: Cluster, snapshot: Snapshot, plan: Plan, *, network: NetworkAccess | None, now: str) -> int:
    """Carry out the plan; returns the number of writes. ``network`` None: no NetworkPolicy may be there. What adds comes first, what
    takes away last, so that a crash in between leaves more than is wanted, never less."""
    writes = _keep_offers(cluster, snapshot)
    for kind, manifest in _guards(snapshot, network):
        writes += _apply(cluster, snapshot, kind, manifest)
    if snapshot.target is not None and snapshot.spec is not None:
        for kind, manifest in _additions(snapshot, plan, snapshot.target, snapshot.spec, now=now):
            writes += _apply(cluster, snapshot, kind, manifest)
    for kind, manifest in _routes(snapshot, plan):
        writes += _apply(cluster, snapshot, kind, manifest)
    for revision in plan.replicas:
        if snapshot.target is None or revision != snapshot.target.revision:
            writes += _adjust(cluster, snapshot, plan, revision, now=now)
    for revision in plan.remove:
        writes += _remove(cluster, snapshot, revision)
    return writes + _forget_stale(cluster, snapshot, plan) + _open_up(cluster, snapshot, network)


def _keep_offers(cluster: Cluster, snapshot: Snapshot) -> int:
    """Keep what first pods offer. Created, never applied: whoever is second, another operator or this one before it was killed, finds
    the name taken and reads in the next pass what was kept."""
    writes = 0
    for manifest in [build.build_recorded(snapshot.owner, offer) for offer in snapshot.trust.offers if offer.record]:
        name = manifest["metadata"]["name"]
        try:
            cluster.create(kinds.CONFIG_MAP, snapshot.key.namespace, manifest)
        except ConflictError:
            _refuse_foreign(cluster, snapshot, kinds.CONFIG_MAP, name)
            continue
        writes += 1
        metrics.APPLIES.labels(kind=kinds.CONFIG_MAP.kind, result="applied").inc()
        LOG.info("Kept the first pod's record: %s/%s", snapshot.key.namespace, name)
    return writes


def _forget_stale(cluster: Cluster, snapshot: Snapshot, plan: Plan) -> int:
    """Records go with the last revision that was declared so. While the spec is not understood nothing goes."""
    target = snapshot.target
    if target is None:
        return 0
    stay = set(snapshot.deployments()) - set(plan.remove)
    stale = stale_config_maps(snapshot.children, revisions=stay, wanted=target.declared, named=target.record_ref)
    return sum(_delete(cluster, snapshot, kinds.CONFIG_MAP, child) for child in stale)


def _guards(snapshot: Snapshot, network: NetworkAccess | None) -> list[tuple[Kind, Manifest]]:
    """Before the first pod, and whatever the spec says by now."""
    if network is None or (snapshot.target is None and not snapshot.deployments()):
        return []
    return [(kinds.NETWORK_POLICY, build.build_network_policy(snapshot.owner, network))]


def _open_up(cluster: Cluster, snapshot: Snapshot, network: NetworkAccess | None) -> int:
    """Whoever installs the operator does not want the policy any more."""
    policy = snapshot.children.get((kinds.NETWORK_POLICY.kind, names.entry(snapshot.key.name)))
    return 0 if network is not None or policy is None else _delete(cluster, snapshot, kinds.NETWORK_POLICY, policy)


def _additions(
    snapshot: Snapshot, plan: Plan, target: Target, spec: InferenceServiceSpec, *, now: str
) -> list[tuple[Kind, Manifest]]:
    owner = snapshot.owner
    found: list[tuple[Kind, Manifest]] = []
    options = spec.template.spec if spec.template is not None else None
    if options is None or options.service_account_name is None:
        found.append((kinds.SERVICE_ACCOUNT, build.build_service_account(owner)))
    if target.revision in plan.replicas:
        deployment = snapshot.deployments().get(target.revision)
        found += [
            (kinds.CONFIG_MAP, build.build_config_map(owner, target)),
            (
                kinds.DEPLOYMENT,
                build.build_deployment(
                    owner,
                    target,
                    replicas=plan.replicas[target.revision],
                    marks=_marks(snapshot, deployment, plan, now=now),
                    progress_deadline_seconds=spec.progress_deadline_seconds,
                ),
            ),
        ]
    return found


def _routes(snapshot: Snapshot, plan: Plan) -> list[tuple[Kind, Manifest]]:
    """What clients reach the revisions by. It needs nothing of the spec, so it is kept in order while the spec is blocked too."""
    found = [(kinds.SERVICE, build.build_revision_service(snapshot.owner, revision)) for revision in plan.replicas]
    if plan.entry is None:
        return found
    return [
        *found,
        (kinds.SERVICE, build.build_entry_service(snapshot.owner, plan.entry)),
        (kinds.POD_DISRUPTION_BUDGET, build.build_disruption_budget(snapshot.owner, plan.entry)),
    ]


def _marks(snapshot: Snapshot, deployment: Manifest | None, plan: Plan, *, now: str) -> dict[str, str]:
    """What is learned about the target's revision while it lives, in annotations of its Deployment: when it first took traffic; under
    TrustFirst what was declared, what was recorded for it and whether that is approved."""
    target, spec = snapshot.target, snapshot.spec
    assert target is not None
    assert spec is not None
    known = (deployment or {}).get("metadata", {}).get("annotations", {})
    served = known.get(names.ANNOTATION_SERVED_AT) or (now if target.revision in plan.served else None)
    recorded = snapshot.trust.recorded.get(target.declared or "")
    marks = {
        names.ANNOTATION_SERVED_AT: served,
        names.ANNOTATION_DECLARED: target.declared,
        names.ANNOTATION_RECORDED: recorded.fingerprint if recorded is not None else None,
        names.ANNOTATION_APPROVED: "true"
        if recorded is not None and spec.release.fingerprint == recorded.fingerprint
        else None,
    }
    return {name: str(value) for name, value in marks.items() if value is not None}


def _apply(cluster: Cluster, snapshot: Snapshot, kind: Kind, manifest: Manifest) -> int:
    name = manifest["metadata"]["name"]
    observed = snapshot.children.get((kind.kind, name))
    if observed is not None and contains(observed, manifest):
        return _take_out(cluster, snapshot, kind, observed, manifest)
    if observed is None:
        _refuse_foreign(cluster, snapshot, kind, name)
    writes = 1
    try:
        stored = cluster.apply(kind, snapshot.key.namespace, manifest)
    except RejectedError:
        # Fields of somebody else's that ours cannot stand beside: a budget counts in one way, and no Service is a load balancer in part.
        taken = _take_out(cluster, snapshot, kind, observed, manifest) if observed is not None else 0
        if not taken:
            raise
        writes += taken
        stored = cluster.apply(kind, snapshot.key.namespace, manifest)
    metrics.APPLIES.labels(kind=kind.kind, result="applied").inc()
    LOG.info("%s %s: %s/%s", "Updated" if observed else "Created", kind.kind, snapshot.key.namespace, name)
    return writes + _take_out(cluster, snapshot, kind, stored, manifest)


def _take_out(cluster: Cluster, snapshot: Snapshot, kind: Kind, stored: Manifest, manifest: Manifest) -> int:
    """Take out what somebody else added to this very object. A webhook that adds it again each time makes this no change at all."""
    excess = find_excess(stored, manifest)
    if not excess:
        return 0
    metadata, fields = stored["metadata"], ", ".join(name_fields(excess))
    body = {**excess, "metadata": {**excess.get("metadata", {}), "uid": metadata["uid"]}}
    after = cluster.patch(kind, snapshot.key.namespace, metadata["name"], body)
    metrics.APPLIES.labels(kind=kind.kind, result="applied").inc()
    if after["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
        LOG.warning(
            "Took out of %s what somebody had added: %s/%s: %s",
            kind.kind,
            snapshot.key.namespace,
            metadata["name"],
            fields,
        )
    return 1


def _refuse_foreign(cluster: Cluster, snapshot: Snapshot, kind: Kind, name: str) -> None:
    """Force would take over an object that somebody else made under this name."""
    existing = cluster.get(kind, snapshot.key.namespace, name)
    if existing is not None and not is_owned(existing, snapshot.owner):
        raise ChildConflictError(
            f"{kind.kind} {name} exists and does not belong to this service; delete it or rename the service"
        )


def _adjust(cluster: Cluster, snapshot: Snapshot, plan: Plan, revision: str, *, now: str) -> int:
    """Scale or mark a revision that is not the target. Its template cannot be built from today's spec, so only these fields are sent."""
    deployment = snapshot.deployments()[revision]
    body: Manifest = {}
    if deployment["spec"].get("replicas") != plan.replicas[revision]:
        body["spec"] = {"replicas": plan.replicas[revision]}
    metadata: Manifest = {}
    marks = {names.ANNOTATION_SERVED_AT: now} if revision in plan.served else {}
    recorded = snapshot.trust.recorded.get(declared_of(deployment) or "")
    if recorded is not None and names.ANNOTATION_RECORDED not in deployment["metadata"].get("annotations", {}):
        marks[names.ANNOTATION_RECORDED] = recorded.fingerprint
    if marks:
        metadata["annotations"] = marks
    if not body and not metadata:
        return 0
    body["metadata"] = {**metadata, "resourceVersion": deployment["metadata"]["resourceVersion"]}
    name = deployment["metadata"]["name"]
    cluster.patch(kinds.DEPLOYMENT, snapshot.key.namespace, name, body)
    metrics.APPLIES.labels(kind=kinds.DEPLOYMENT.kind, result="applied").inc()
    LOG.info("Adjusted Deployment: %s/%s: replicas %d", snapshot.key.namespace, name, plan.replicas[revision])
    return 1


def _remove(cluster: Cluster, snapshot: Snapshot, revision: str) -> int:
    """Remove a revision. The Deployment goes last: as long as it is there, the next pass still knows the revision."""
    writes = 0
    found = children_of(snapshot, revision)
    for kind, child in sorted(found, key=lambda pair: pair[0] == kinds.DEPLOYMENT):
        writes += _delete(cluster, snapshot, kind, child)
    return writes


def _delete(cluster: Cluster, snapshot: Snapshot, kind: Kind, child: Manifest) -> int:
    metadata = child["metadata"]
    try:
        cluster.delete(kind, snapshot.key.namespace, metadata["name"], uid=metadata["uid"])
    except NotFoundError:
        return 0
    metrics.APPLIES.labels(kind=kind.kind, result="deleted").inc()
    LOG.info("Deleted %s: %s/%s", kind.kind, snapshot.key.namespace, metadata["name"])
    return 1
