"""What a test reads and writes in its namespace."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from kubernetes import client

from pratique_contract import constants
from pratique_operator import kinds, labels
from pratique_operator.cluster import ApiCluster
from pratique_operator.kinds import Kind
from tests.integration.operator.changes import eventually
from tests.integration.operator.kubelet import FakeKubelet, Manifest
from tests.integration.operator.namespaces import LABEL_MADE, REFERRED
from tests.integration.operator.running import Operator

# Both must pass without a change: controllers keep to the clock, the operator to its passes.
STILL_SECONDS = 0.5
STILL_PASSES = 2


@dataclass
class World:
    """What a test reads and writes, as the administrator."""

    namespace: str
    admin: client.ApiClient
    kubelet: FakeKubelet
    operator: Operator

    @property
    def cluster(self) -> ApiCluster:
        return ApiCluster(self.admin, timeout_seconds=10)

    def manifest(self, name: str = "svc", **spec: Any) -> Manifest:
        """A service that the API server accepts and whose pods land on the fake node."""
        template = spec.pop("template", {})
        return {
            "apiVersion": constants.API_VERSION,
            "kind": constants.KIND,
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": {constants.LABEL_OPERATOR: self.operator.config.operator_name},
            },
            "spec": {
                "model": {"uri": "file:///models/x"},
                "engine": {"image": "localhost/none:1"},
                "template": {**template, "spec": {**self.kubelet.placement(), **template.get("spec", {})}},
                **spec,
            },
        }

    def apply(self, manifest: Manifest, manager: str = "person") -> Manifest:
        """As ``kubectl apply --server-side`` does it."""
        kind = kinds.BY_NAME[manifest["kind"]]
        if kind in REFERRED:
            manifest = {**manifest, "metadata": {**manifest["metadata"], "labels": {LABEL_MADE: "here"}}}
        query = f"?fieldManager={manager}&force=true&fieldValidation=Strict"
        path = kind.path(self.namespace, manifest["metadata"]["name"])
        return self.cluster._call("PATCH", path + query, body=manifest, content_type="application/apply-patch+yaml")

    def table(self, path: str) -> Manifest:
        """The list as kubectl gets it for a person."""
        accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        answer = self.admin.rest_client.pool_manager.request(
            "GET", f"{self.admin.configuration.host}{path}", headers=accept
        )
        found: Manifest = answer.json()
        return found

    def create(self, name: str = "svc", **spec: Any) -> Manifest:
        return self.apply(self.manifest(name, **spec))

    def service(self, name: str = "svc") -> Manifest:
        found = self.cluster.get(kinds.INFERENCE_SERVICE, self.namespace, name)
        assert found is not None
        return found

    def status(self, name: str = "svc") -> Manifest:
        return dict(self.service(name).get("status") or {})

    def conditions(self, name: str = "svc") -> dict[str, Manifest]:
        """By type; none while they are about an older spec."""
        found = self.service(name)
        status = found.get("status") or {}
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return {}
        return {condition["type"]: condition for condition in status.get("conditions", ())}

    def condition(self, kind: str = "Ready", name: str = "svc") -> Manifest:
        return self.conditions(name).get(kind, {})

    def reason(self, kind: str = "Ready", name: str = "svc") -> str | None:
        return self.condition(kind, name).get("reason")

    def wait_ready(self, name: str = "svc", timeout: float = 30.0) -> Manifest:
        def settled() -> bool:
            told = self.conditions(name)
            return [told.get(kind, {}).get("status") for kind in ("Ready", "Progressing")] == ["True", "False"]

        try:
            eventually(settled, timeout=timeout, what=f"{name} is Ready and settled")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{yaml.safe_dump(self.status(name))}") from error
        return self.service(name)

    def wait_reason(self, reason: str, kind: str = "Ready", name: str = "svc", timeout: float = 30.0) -> Manifest:
        try:
            eventually(lambda: self.reason(kind, name) == reason, timeout=timeout, what=f"{kind} says {reason}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{yaml.safe_dump(self.status(name))}") from error
        return self.condition(kind, name)

    def target(self, name: str = "svc") -> str:
        """The revision of the current spec, once the operator has seen it."""

        def read() -> str | None:
            found = self.service(name)
            status = found.get("status") or {}
            if status.get("observedGeneration") != found["metadata"]["generation"]:
                return None
            revision: str | None = (status.get("rollout") or {}).get("target")
            return revision

        return eventually(read, what="the revision is known") or ""

    def events(self, name: str = "svc") -> list[Manifest]:
        """The Events about this very service."""
        uid = self.service(name)["metadata"]["uid"]
        return self.cluster.list(kinds.EVENT, self.namespace, fields=f"involvedObject.uid={uid}")

    def list(self, kind: Kind, name: str = "svc") -> list[Manifest]:
        return self.cluster.list(kind, self.namespace, labels.selector_text(labels.service_selector(name)))

    def children(self, name: str = "svc") -> dict[str, Manifest]:
        return {
            f"{kind.kind}/{child['metadata']['name']}": child
            for kind in kinds.CHILDREN
            for child in self.list(kind, name)
        }

    def deployed(self, name: str = "svc") -> Sequence[str]:
        """The revisions that have a Deployment."""
        return [found["metadata"]["labels"][constants.LABEL_REVISION] for found in self.list(kinds.DEPLOYMENT, name)]

    def versions(self, name: str = "svc") -> dict[str, str]:
        """resourceVersion of the service and of every child."""
        found = {key: child["metadata"]["resourceVersion"] for key, child in self.children(name).items()}
        return {**found, "self": self.service(name)["metadata"]["resourceVersion"]}

    def passes(self, number: int, *names: str) -> None:
        """Wait until the operator has looked at the services so many more times, from beginning to end."""
        self.operator.wait_passes([(self.namespace, name) for name in names or ("svc",)], number)

    def settle(self, name: str = "svc") -> dict[str, str]:
        """The versions once they have stood still over several passes: controllers write their last word late, and on a busy
        machine the operator's answer to it comes later still."""
        return self.settle_all([name])[name]

    def settle_all(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """As ``settle``, for several services that stand still together."""
        deadline, seen = time.monotonic() + 30, None
        while True:
            before, seen = seen, {name: self.versions(name) for name in names}
            if before == seen:
                return seen
            assert time.monotonic() < deadline, "nothing moves any more"
            time.sleep(STILL_SECONDS)
            self.passes(STILL_PASSES, *names)

    def entry(self, name: str = "svc") -> str | None:
        service = self.cluster.get(kinds.SERVICE, self.namespace, name)
        return None if service is None else service["spec"]["selector"].get(constants.LABEL_REVISION)

    def delete(self, name: str = "svc") -> None:
        found = self.service(name)["metadata"]
        self.cluster._call("DELETE", kinds.INFERENCE_SERVICE.path(self.namespace, found["name"]))
