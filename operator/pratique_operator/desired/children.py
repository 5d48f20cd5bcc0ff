"""The children of a service: per revision a ConfigMap, a Service and a Deployment; once the ServiceAccount, the NetworkPolicy, the entry
Service and the PodDisruptionBudget. A revision's Deployment never changes its template: a change of anything in it is another revision.
"""

from collections.abc import Mapping
from typing import Any, Final

from pratique_contract import constants
from pratique_contract.canonical import digest_json
from pratique_operator import kinds, labels, names
from pratique_operator.desired.pod import name_revision
from pratique_operator.desired.revision import Target
from pratique_operator.kinds import Kind
from pratique_operator.network import NetworkAccess
from pratique_operator.release.trust import Offer

Manifest = dict[str, Any]

PORT_MAX: Final = 65535

# The API server's defaults, said so that they are put back when somebody sets them: clients would meet pods that have not passed, or
# none at all from a node without a pod.
_ROUTING: Final = {"publishNotReadyAddresses": False, "internalTrafficPolicy": "Cluster"}


def _child(
    kind: Kind, name: str, *, owner: Manifest, child_labels: dict[str, str], annotations: dict[str, str], **body: Any
) -> Manifest:
    """One object with labels, owner and the hash of its own intent, which shows when a field we used to set is gone."""
    manifest: Manifest = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": owner["metadata"]["namespace"],
            "labels": child_labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(owner)],
        },
        **body,
    }
    annotations[constants.ANNOTATION_SPEC_HASH] = digest_json(manifest)
    return manifest


def owner_reference(owner: Manifest) -> Manifest:
    """Children go with their service through garbage collection, whether the operator runs or not."""
    return {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


def build_service_account(owner: Manifest) -> Manifest:
    """An account without rights or token, so that the pods do not run as ``default``."""
    service = owner["metadata"]["name"]
    return _child(
        kinds.SERVICE_ACCOUNT,
        names.entry(service),
        owner=owner,
        child_labels=labels.service_labels(service),
        annotations={},
        automountServiceAccountToken=False,
    )


def build_config_map(owner: Manifest, target: Target) -> Manifest:
    """What the revision's pods read: the serving document and the release record. Immutable."""
    service = owner["metadata"]["name"]
    return _child(
        kinds.CONFIG_MAP,
        names.revision_child(service, target.revision),
        owner=owner,
        child_labels=labels.revision_labels(service, target.revision),
        annotations={},
        immutable=True,
        data=dict(target.config_data),
    )


def build_recorded(owner: Manifest, offer: Offer) -> Manifest:
    """The record of a declared release under TrustFirst, as its first pod gave it. Immutable; belongs to no revision."""
    assert offer.record is not None
    service, fingerprint = owner["metadata"]["name"], offer.record.fingerprint
    annotations = {names.ANNOTATION_DECLARED: offer.declared, constants.ANNOTATION_FINGERPRINT: fingerprint}
    if offer.pinned is not None:
        annotations[names.ANNOTATION_PINNED] = offer.pinned
    return _child(
        kinds.CONFIG_MAP,
        names.recorded(service, offer.declared),
        owner=owner,
        child_labels={**labels.service_labels(service), **labels.declared_label(offer.declared)},
        annotations=annotations,
        immutable=True,
        data={constants.RECORD_FILE: offer.record.to_json()},
    )


def build_revision_service(owner: Manifest, revision: str) -> Manifest:
    """One revision's verified pods under their own name, whatever the entry points at."""
    service = owner["metadata"]["name"]
    return _child(
        kinds.SERVICE,
        names.revision_child(service, revision),
        owner=owner,
        child_labels=labels.revision_labels(service, revision),
        annotations={},
        spec={
            "type": "ClusterIP",
            "selector": labels.revision_selector(service, revision),
            **_ROUTING,
            "ports": [
                _port(constants.API_PORT_NAME, names.ENTRY_PORT),
                _port(constants.MANAGEMENT_PORT_NAME, constants.MANAGEMENT_PORT),
            ],
        },
    )


def build_entry_service(owner: Manifest, revision: str) -> Manifest:
    """The address clients use. Its selector names one revision; promotion moves it and restarts nothing."""
    service = owner["metadata"]["name"]
    return _child(
        kinds.SERVICE,
        names.entry(service),
        owner=owner,
        child_labels=labels.service_labels(service),
        annotations={},
        spec={
            "type": "ClusterIP",
            "selector": labels.revision_selector(service, revision),
            **_ROUTING,
            "ports": [_port(constants.API_PORT_NAME, names.ENTRY_PORT)],
        },
    )


def _port(name: str, port: int) -> Manifest:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def build_disruption_budget(owner: Manifest, revision: str) -> Manifest:
    """Evictions take one serving pod at a time. Only the serving revision counts: a broken candidate must not block a node's drain."""
    service = owner["metadata"]["name"]
    return _child(
        kinds.POD_DISRUPTION_BUDGET,
        names.entry(service),
        owner=owner,
        child_labels=labels.service_labels(service),
        annotations={},
        spec={
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": labels.revision_selector(service, revision)},
        },
    )


def build_network_policy(owner: Manifest, access: NetworkAccess) -> Manifest:
    """Closes the management port of all the service's pods, of whichever revision, to everybody but ``management_from``; a pod's own
    node (the kubelet's probes) always gets through. Every other port stays as it is without a policy: a service mesh brings some of
    its own. The API port is named apart, because a network plug-in without ranges takes the first port of each."""
    service = owner["metadata"]["name"]
    before, after = constants.MANAGEMENT_PORT - 1, constants.MANAGEMENT_PORT + 1
    others = _ranges(1, before, without=constants.API_PORT) + _ranges(after, PORT_MAX, without=constants.API_PORT)
    ingress: list[Manifest] = [
        _rule(access.api_from, [_open(constants.API_PORT)]),
        {"ports": [*others, {"protocol": "UDP", "port": 1, "endPort": PORT_MAX}]},
    ]
    if access.management_from:
        # A rule without peers would let everybody in.
        ingress.append(_rule(access.management_from, [_open(constants.MANAGEMENT_PORT)]))
    return _child(
        kinds.NETWORK_POLICY,
        names.entry(service),
        owner=owner,
        child_labels=labels.service_labels(service),
        annotations={},
        spec={
            "podSelector": {"matchLabels": labels.service_selector(service)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    )


def _rule(peers: tuple[Manifest, ...], ports: list[Manifest]) -> Manifest:
    return {"from": list(peers), "ports": ports} if peers else {"ports": ports}


def _open(port: int) -> Manifest:
    return {"protocol": "TCP", "port": port}


def _ranges(first: int, last: int, *, without: int) -> list[Manifest]:
    """The ports from ``first`` to ``last``, but for one."""
    parts = [(first, last)]
    if first <= without <= last:
        parts = [(first, without - 1), (without + 1, last)]
    return [{**_open(low), "endPort": high} for low, high in parts if low <= high]


def build_deployment(
    owner: Manifest, target: Target, *, replicas: int, marks: Mapping[str, str], progress_deadline_seconds: int
) -> Manifest:
    """The revision's pods. Within one revision only scaling and repair happen, so no surge. ``marks`` are annotations of the
    Deployment alone: what is learned about a revision later must restart none of its pods."""
    service = owner["metadata"]["name"]
    name = names.revision_child(service, target.revision)
    own = labels.revision_labels(service, target.revision)
    annotations = target.annotations
    template = name_revision(target.template, service=service, revision=target.revision, annotations=annotations)
    return _child(
        kinds.DEPLOYMENT,
        name,
        owner=owner,
        child_labels=own,
        annotations={**annotations, **marks},
        spec={
            "replicas": replicas,
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": progress_deadline_seconds,
            "selector": {"matchLabels": labels.revision_selector(service, target.revision)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": template,
        },
    )
