"""The kinds the operator reads or writes and where the API server keeps them."""

from dataclasses import dataclass
from typing import Final

from pratique_contract import constants


@dataclass(frozen=True)
class Kind:
    """One namespaced kind. ``path`` is its REST path."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        where = f"/namespaces/{namespace}" if namespace else ""
        return "/".join(part for part in (f"{root}{where}/{self.plural}", name, subresource) if part)


@dataclass(frozen=True)
class Key:
    """One service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


INFERENCE_SERVICE: Final = Kind(constants.API_VERSION, constants.KIND, constants.PLURAL)
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
SERVICE: Final = Kind("v1", "Service", "services")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
SECRET: Final = Kind("v1", "Secret", "secrets")
POD: Final = Kind("v1", "Pod", "pods")
EVENT: Final = Kind("v1", "Event", "events")
POD_DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
ENDPOINT_SLICE: Final = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")

# Written and garbage-collected with the service.
CHILDREN: Final = (SERVICE_ACCOUNT, NETWORK_POLICY, CONFIG_MAP, SERVICE, POD_DISRUPTION_BUDGET, DEPLOYMENT)
# A change of one of these starts a pass of its service. They carry our labels (endpoint slices inherit their Service's).
WATCHED: Final = (*CHILDREN, POD, ENDPOINT_SLICE)
BY_NAME: Final = {kind.kind: kind for kind in (INFERENCE_SERVICE, *WATCHED, SECRET, EVENT)}
