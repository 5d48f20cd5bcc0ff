"""What takes a service's traffic and was not made for it: a pod with a revision's labels that its Deployment did not make, an endpoint
slice that somebody wrote by hand. Pure.

A Service sends traffic to whatever carries its labels, and the nodes to whatever slice names the Service. No gate of ours stands before
either, so neither is counted, asked for a verdict or recorded; that they are there is told.
"""

from collections.abc import Iterable
from typing import Any, Final

from pratique_contract import constants
from pratique_operator import names

Manifest = dict[str, Any]

_TEMPLATE_HASH: Final = "pod-template-hash"
_SLICE_MANAGER: Final = "endpointslice.kubernetes.io/managed-by"
# Whatever else carries this value, the controller rewrites or deletes.
_SLICE_CONTROLLER: Final = "endpointslice-controller.k8s.io"
_ADDRESSES_SHOWN: Final = 3


def is_foreign(pod: Manifest) -> bool:
    """Whether another hand made it than its revision's Deployment, through a ReplicaSet. By name: a reference to a ReplicaSet that does
    not exist is the garbage collector's, and a pod that a ReplicaSet has taken for its own is one too many for it."""
    metadata = pod["metadata"]
    own = metadata.get("labels", {})
    deployment = names.revision_child(own.get(constants.LABEL_SERVICE, ""), own.get(constants.LABEL_REVISION, ""))
    maker = f"{deployment}-{own.get(_TEMPLATE_HASH, '')}"
    return not any(
        reference.get("controller") and (reference.get("kind"), reference.get("name")) == ("ReplicaSet", maker)
        for reference in metadata.get("ownerReferences", ())
    )


def find_foreign(pods: Iterable[Manifest], slices: Iterable[Manifest]) -> tuple[str, ...]:
    """A sentence for each thing that takes traffic and should not; ``slices`` are those of the entry Service."""
    found = [_explain_pod(pod) for pod in pods if is_foreign(pod) and _takes_traffic(pod)]
    return tuple(sorted(found) + sorted(_explain_slice(part) for part in slices if is_foreign_slice(part)))


def is_foreign_slice(part: Manifest) -> bool:
    """Whether it sends traffic somewhere and is not the endpoint controller's."""
    manager = part["metadata"].get("labels", {}).get(_SLICE_MANAGER)
    return manager != _SLICE_CONTROLLER and bool(_ready_addresses(part))


def _takes_traffic(pod: Manifest) -> bool:
    """Selected by a revision's Service, ready, and with the port that Services look for."""
    metadata, status = pod["metadata"], pod.get("status", {})
    if "deletionTimestamp" in metadata or not metadata.get("labels", {}).get(constants.LABEL_REVISION):
        return False
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    ports = (port for container in pod.get("spec", {}).get("containers", ()) for port in container.get("ports", ()))
    return ready and any(port.get("name") == constants.API_PORT_NAME for port in ports)


def _ready_addresses(part: Manifest) -> list[str]:
    ready = (e for e in part.get("endpoints") or () if e.get("conditions", {}).get("ready") is not False)
    return [str(address) for endpoint in ready for address in endpoint.get("addresses", ())]


def _explain_pod(pod: Manifest) -> str:
    metadata = pod["metadata"]
    revision = metadata["labels"][constants.LABEL_REVISION]
    return (
        f"pod {metadata['name']} takes traffic under the labels of revision {revision}, whose Deployment did not make it; nothing "
        "proved what it serves: delete it, or its labels"
    )


def _explain_slice(part: Manifest) -> str:
    addresses = _ready_addresses(part)
    more = f" and {len(addresses) - _ADDRESSES_SHOWN} more" if len(addresses) > _ADDRESSES_SHOWN else ""
    return (
        f"EndpointSlice {part['metadata']['name']} was written by hand and sends the service's traffic to "
        f"{', '.join(addresses[:_ADDRESSES_SHOWN])}{more}; nothing proved what is there: delete it"
    )
