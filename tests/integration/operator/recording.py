"""A cluster that writes down which rights each call needs, counts the passes, and passes every call on."""

from collections import Counter
from typing import Any

from pratique_operator import kinds
from pratique_operator.cluster import Cluster, Manifest
from pratique_operator.kinds import Kind

Right = tuple[str, str, str]


class RecordingCluster:
    def __init__(self, cluster: Cluster, rights: set[Right]) -> None:
        self._cluster = cluster
        self._rights = rights
        self.passes: Counter[tuple[str, str]] = Counter()

    def _record(self, kind: Kind, *verbs: str, subresource: str | None = None) -> None:
        resource = kind.plural if subresource is None else f"{kind.plural}/{subresource}"
        self._rights.update((verb, kind.group, resource) for verb in verbs)

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        self._record(kind, "get")
        if kind == kinds.INFERENCE_SERVICE:  # how every pass begins
            self.passes[namespace, name] += 1
        return self._cluster.get(kind, namespace, name)

    def version(self, kind: Kind, namespace: str, name: str) -> str | None:
        self._record(kind, "get")
        return self._cluster.version(kind, namespace, name)

    def list(self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = "") -> list[Manifest]:
        self._record(kind, "list")
        return self._cluster.list(kind, namespace, selector, fields=fields)

    def create(self, kind: Kind, namespace: str, body: Manifest) -> None:
        self._record(kind, "create")
        self._cluster.create(kind, namespace, body)

    def apply(self, kind: Kind, namespace: str, body: Manifest) -> Manifest:
        # Applying what does not exist needs the right to create it as well.
        self._record(kind, "patch", "create")
        return self._cluster.apply(kind, namespace, body)

    def patch(self, kind: Kind, namespace: str, name: str, body: Manifest, **more: Any) -> Manifest:
        self._record(kind, "patch", subresource=more.get("subresource"))
        return self._cluster.patch(kind, namespace, name, body, **more)

    def delete(self, kind: Kind, namespace: str, name: str, **more: Any) -> None:
        self._record(kind, "delete")
        self._cluster.delete(kind, namespace, name, **more)

    def read_pod(self, namespace: str, pod: str, port: int, path: str, *, timeout_seconds: float) -> str:
        raise AssertionError("in the cluster the operator asks the pods themselves")

    def close(self) -> None:
        self._cluster.close()
