"""Namespaces for one worker, used again and again: to make one, with an account for the operator, and above all to delete one costs
the API server and its controllers hundreds of calls.

Plain calls, not the typed client: importing its core API takes longer than most tests here.
"""

import base64
from collections import deque
from pathlib import Path

import yaml
from kubernetes import client

from pratique_operator import kinds, labels
from pratique_operator.cluster import ApiCluster, Manifest
from pratique_operator.kinds import Kind
from tests.integration.operator.changes import eventually

# What a test makes for its services to refer to; everything else in a namespace belongs to a service and goes with it.
REFERRED = (kinds.CONFIG_MAP, kinds.SECRET)
LABEL_MADE = "pratique.test/made"
NAMESPACE = Kind("v1", "Namespace", "namespaces")
_ROLE_BINDING = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
_REPLICA_SET = Kind("apps/v1", "ReplicaSet", "replicasets")
_TOKEN_SECONDS = 3600


def create_namespace(cluster: ApiCluster, name: str) -> None:
    cluster.create(NAMESPACE, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def delete_namespace(cluster: ApiCluster, name: str) -> None:
    """Begin to; nobody waits for it."""
    cluster._call("DELETE", NAMESPACE.path(None, name))


class Namespaces:
    """Hands out namespaces in turn, so that one is being cleared while the next is in use. ``kubeconfig`` logs in as a ServiceAccount
    with exactly the rights of ``role`` in them and none elsewhere."""

    def __init__(self, api: client.ApiClient, names: tuple[str, ...], role: str, folder: Path) -> None:
        self._api, self._cluster = api, ApiCluster(api, timeout_seconds=20)
        self.names, self._free = names, deque(names)
        for name in names:
            create_namespace(self._cluster, name)
        home = names[0]
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator"}}
        self._cluster.create(kinds.SERVICE_ACCOUNT, home, account)
        for name in names:
            self._grant(role, name)
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(self._kubeconfig(home)))

    def take(self) -> str:
        """An empty namespace."""
        name = self._free.popleft()
        eventually(lambda: self._is_empty(name), timeout=60, what=f"{name} is empty again")
        return name

    def give_back(self, name: str) -> None:
        """Begin to clear it."""
        background = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        self._cluster._call("DELETE", kinds.INFERENCE_SERVICE.path(name), body=background)
        for kind in REFERRED:
            self._cluster._call("DELETE", kind.path(name), query={"labelSelector": LABEL_MADE})
        self._free.append(name)

    def delete(self) -> None:
        for name in self.names:
            delete_namespace(self._cluster, name)

    def _is_empty(self, name: str) -> bool:
        looked_at = [(kind, labels.MANAGED_SELECTOR) for kind in (*kinds.WATCHED, _REPLICA_SET)]
        looked_at += [(kinds.INFERENCE_SERVICE, ""), *[(kind, LABEL_MADE) for kind in REFERRED]]
        return not any(self._cluster.list(kind, name, selector) for kind, selector in looked_at)

    def _grant(self, role: str, name: str) -> None:
        binding = {
            "apiVersion": _ROLE_BINDING.api_version,
            "kind": _ROLE_BINDING.kind,
            "metadata": {"name": "operator"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": self.names[0]}],
        }
        self._cluster.create(_ROLE_BINDING, name, binding)

    def _kubeconfig(self, home: str) -> Manifest:
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        path = kinds.SERVICE_ACCOUNT.path(home, "operator", "token")
        body = {**wanted, "spec": {"expirationSeconds": _TOKEN_SECONDS}}
        token = self._cluster._call("POST", path, body=body)["status"]["token"]
        settings = self._api.configuration
        authority = base64.b64encode(Path(settings.ssl_ca_cert).read_bytes()).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": settings.host, "certificate-authority-data": authority}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": home}}],
            "current-context": "x",
        }
