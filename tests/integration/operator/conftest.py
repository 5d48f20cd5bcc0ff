"""The operator from the source tree against the real API server of the test cluster.

Each test has a namespace, an operator of its own name that looks after that namespace only, and pods on a node that
``FakeKubelet`` plays. The operator logs in as a ServiceAccount with exactly the chart's rules. Without a cluster this fails.
"""

import asyncio
import base64
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from kubernetes import client, config

from pratique_contract import Verdict, constants
from pratique_operator import kinds, labels
from pratique_operator.cluster import ApiCluster
from pratique_operator.config import OperatorConfig
from pratique_operator.crd import build_crd
from pratique_operator.errors import UnavailableError
from pratique_operator.kinds import Kind
from pratique_operator.main import serve
from pratique_operator.pods import PodFacts
from pratique_operator.trust import RecordAnswer
from pratique_operator.verdicts import VerdictReader
from tests.integration.operator.kubelet import FakeKubelet, Manifest
from tests.integration.operator.recording import RecordingCluster

REPOSITORY = Path(__file__).resolve().parents[3]
T = TypeVar("T")
STILL_SECONDS = 2.5


def kubeconfig() -> Path:
    if os.environ.get("PRATIQUE_CLUSTER") == "existing":
        return Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    return Path(os.environ.get("PRATIQUE_CACHE") or Path.home() / ".cache" / "pratique").expanduser() / "kubeconfig"


def eventually(read: Callable[[], T], *, timeout: float = 30.0, what: str = "it becomes true") -> T:
    """The first true value of ``read``; fails saying what it last saw."""
    deadline = time.monotonic() + timeout
    while True:
        value = read()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"Not within {timeout:.0f} s: {what}")
        time.sleep(0.05)


@pytest.fixture(scope="session")
def admin() -> client.ApiClient:
    """The cluster's administrator."""
    path = kubeconfig()
    if not path.is_file():
        pytest.fail(f"There is no cluster: {path} does not exist; run `make cluster`", pytrace=False)
    settings = client.Configuration()
    config.load_kube_config(str(path), client_configuration=settings)
    api = client.ApiClient(settings)
    ApiCluster(api, timeout_seconds=20).apply(_CRD_KIND, "", build_crd())
    custom = client.ApiextensionsV1Api(api)

    def established() -> bool:
        found = custom.read_custom_resource_definition(build_crd()["metadata"]["name"])
        return any(c.type == "Established" and c.status == "True" for c in found.status.conditions or ())

    eventually(established, what="the CRD is established")
    return api


class _ClusterKind(Kind):
    """A kind without namespaces, for the fixtures only."""

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        return super().path(None, name, subresource)


_CRD_KIND = _ClusterKind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
_ROLE_KIND = _ClusterKind("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles")


@pytest.fixture(scope="session")
def chart_rules() -> list[dict[str, Any]]:
    """The rules of the chart's ClusterRole; that part of the template is plain YAML."""
    text = (REPOSITORY / "charts/pratique/templates/clusterrole.yaml").read_text()
    rules: list[dict[str, Any]] = yaml.safe_load(text[text.index("rules:") :])["rules"]
    return rules


@pytest.fixture(scope="session")
def recording() -> set[tuple[str, str, str]]:
    """(verb, group, resource) of every call any test's operator made."""
    return set()


@pytest.fixture(scope="session")
def kubelet(admin: client.ApiClient) -> Iterator[FakeKubelet]:
    fake = FakeKubelet(admin, f"pratique-test-{uuid.uuid4().hex[:8]}")
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture(scope="session")
def role(admin: client.ApiClient, chart_rules: list[dict[str, Any]]) -> Iterator[str]:
    """A ClusterRole with the chart's rules."""
    name = f"pratique-test-{uuid.uuid4().hex[:8]}"
    rbac = client.RbacAuthorizationV1Api(admin)
    rbac.create_cluster_role({"metadata": {"name": name}, "rules": chart_rules})
    yield name
    rbac.delete_cluster_role(name)


@dataclass
class Operator:
    """One operator in a thread of this process; may be stopped (as abruptly as a process ends) and started again."""

    namespace: str
    admin: client.ApiClient
    kubeconfig: Path
    config: OperatorConfig
    recording: set[tuple[str, str, str]]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    records: dict[str, RecordAnswer] = field(default_factory=dict)
    _thread: threading.Thread | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _stop: asyncio.Event | None = None
    errors: list[BaseException] = field(default_factory=list)

    def start(self) -> None:
        settings = client.Configuration()
        config.load_kube_config(str(self.kubeconfig), client_configuration=settings)
        api = client.ApiClient(settings)
        direct = ApiCluster(api, timeout_seconds=10)
        cluster = RecordingCluster(direct, self.recording)
        reader = VerdictReader(self._read, workers=2, ready_seconds=0.3)
        started = threading.Event()

        async def main() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            started.set()
            await serve(cluster, self.config, reader, self._read_record, login=direct.connection, stop=self._stop)
            await asyncio.sleep(0.1)  # aiohttp closes its transports in the loop's next rounds

        def run() -> None:
            try:
                asyncio.run(main())
            except BaseException as error:  # noqa: BLE001 - told by stop()
                self.errors.append(error)
                started.set()
            finally:
                reader.close()
                api.rest_client.pool_manager.clear()

        self._thread = threading.Thread(target=run, name="operator", daemon=True)
        self._thread.start()
        started.wait(10)

    def _read(self, _namespace: str, pod: PodFacts) -> str:
        verdict = self.verdicts.get(pod.name) or self.verdicts.get(pod.revision) or self.verdicts.get("*")
        if verdict is None:
            raise UnavailableError("the pod does not answer")
        return verdict.model_dump_json(by_alias=True)

    def _read_record(self, _namespace: str, pod: PodFacts) -> RecordAnswer:
        return (
            self.records.get(pod.name) or self.records.get(pod.revision) or self.records.get("*") or RecordAnswer(None)
        )

    def stop(self) -> None:
        if self._thread is not None and self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(20)
            assert not self._thread.is_alive()
        self._thread = None
        assert self.errors == []


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

    def condition(self, kind: str = "Ready", name: str = "svc") -> Manifest:
        found = self.service(name)
        current = (found.get("status") or {}).get("observedGeneration") == found["metadata"]["generation"]
        conditions = (found.get("status") or {}).get("conditions", ()) if current else ()
        return next((dict(c) for c in conditions if c["type"] == kind), {})

    def reason(self, kind: str = "Ready", name: str = "svc") -> str | None:
        return self.condition(kind, name).get("reason")

    def wait_ready(self, name: str = "svc", timeout: float = 30.0) -> Manifest:
        def settled() -> bool:
            ready, progressing = self.condition("Ready", name), self.condition("Progressing", name)
            return ready.get("status") == "True" and progressing.get("status") == "False"

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

    def list(self, kind: Kind, name: str = "svc") -> list[Manifest]:
        return self.cluster.list(kind, self.namespace, labels.selector_text(labels.service_selector(name)))

    def children(self, name: str = "svc") -> dict[str, Manifest]:
        return {
            f"{kind.kind}/{child['metadata']['name']}": child
            for kind in kinds.CHILDREN
            for child in self.list(kind, name)
        }

    def versions(self, name: str = "svc") -> dict[str, str]:
        """resourceVersion of the service and of every child."""
        found = {key: child["metadata"]["resourceVersion"] for key, child in self.children(name).items()}
        return {**found, "self": self.service(name)["metadata"]["resourceVersion"]}

    def settle(self, name: str = "svc") -> dict[str, str]:
        """The versions once they have stood still for ``STILL_SECONDS``: controllers write their last word late, and on a busy
        machine the operator's answer to it comes later still."""
        return self.settle_all([name])[name]

    def settle_all(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """As ``settle``, for several services that stand still together."""

        def read() -> dict[str, dict[str, str]]:
            return {name: self.versions(name) for name in names}

        seen, since = read(), time.monotonic()

        def still() -> bool:
            nonlocal seen, since
            time.sleep(0.25)
            before, seen = seen, read()
            if before != seen:
                since = time.monotonic()
            return time.monotonic() - since >= STILL_SECONDS

        eventually(still, what="nothing moves any more")
        return seen

    def entry(self, name: str = "svc") -> str | None:
        service = self.cluster.get(kinds.SERVICE, self.namespace, name)
        return None if service is None else service["spec"]["selector"].get(constants.LABEL_REVISION)

    def delete(self, name: str = "svc") -> None:
        found = self.service(name)["metadata"]
        self.cluster._call("DELETE", kinds.INFERENCE_SERVICE.path(self.namespace, found["name"]))


@pytest.fixture
def namespace(admin: client.ApiClient) -> Iterator[str]:
    yield from _namespace(admin)


@pytest.fixture
def operator_kubeconfig(admin: client.ApiClient, namespace: str, role: str, tmp_path: Path) -> Path:
    """A kubeconfig for a ServiceAccount with the chart's rules in this namespace and nothing else."""
    core, rbac = client.CoreV1Api(admin), client.RbacAuthorizationV1Api(admin)
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "operator"}})
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": namespace}
    binding = {
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }
    rbac.create_namespaced_role_binding(namespace, binding)
    token = core.create_namespaced_service_account_token("operator", namespace, {"spec": {"expirationSeconds": 3600}})
    settings = admin.configuration
    authority = base64.b64encode(Path(settings.ssl_ca_cert).read_bytes()).decode()
    value = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": settings.host, "certificate-authority-data": authority}}],
        "users": [{"name": "u", "user": {"token": token.status.token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
        "current-context": "x",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(value))
    return path


@pytest.fixture
def bare(admin: client.ApiClient, shared_namespace: str, kubelet: FakeKubelet, tmp_path: Path) -> World:
    """A namespace for several tests, without an operator."""
    settings = OperatorConfig(operator_name="nobody")
    return World(shared_namespace, admin, kubelet, Operator(shared_namespace, admin, tmp_path, settings, set()))


@pytest.fixture(scope="module")
def shared_namespace(admin: client.ApiClient) -> Iterator[str]:
    yield from _namespace(admin)


def _namespace(admin: client.ApiClient) -> Iterator[str]:
    core = client.CoreV1Api(admin)
    name = f"pratique-it-{uuid.uuid4().hex[:8]}"
    core.create_namespace({"metadata": {"name": name}})
    yield name
    core.delete_namespace(name)


@pytest.fixture
def settings(namespace: str) -> OperatorConfig:
    """The operator's settings: quick rounds, this namespace only."""
    return OperatorConfig(
        allow_file_sources=True,
        watch_namespaces=(namespace,),
        operator_name=namespace,
        resync_seconds=0.5,
        retry_seconds=0.3,
        reference_seconds=0.3,
        verdict_poll_seconds=0.2,
        health_port=0,
        metrics_port=0,
    )


@dataclass(frozen=True)
class Base:
    """What every world is made of."""

    admin: client.ApiClient
    namespace: str
    kubelet: FakeKubelet
    kubeconfig: Path
    recording: set[tuple[str, str, str]]


@pytest.fixture
def base(
    admin: client.ApiClient,
    namespace: str,
    kubelet: FakeKubelet,
    operator_kubeconfig: Path,
    recording: set[tuple[str, str, str]],
) -> Base:
    return Base(admin, namespace, kubelet, operator_kubeconfig, recording)


def _world(base: Base, settings: OperatorConfig) -> Iterator[World]:
    operator = Operator(base.namespace, base.admin, base.kubeconfig, settings, base.recording)
    operator.start()
    yield World(base.namespace, base.admin, base.kubelet, operator)
    operator.stop()


@pytest.fixture
def world(base: Base, settings: OperatorConfig) -> Iterator[World]:
    """The namespace with a running operator."""
    yield from _world(base, settings)


@pytest.fixture
def slow_world(base: Base, settings: OperatorConfig) -> Iterator[World]:
    """A world whose operator resyncs too rarely to help: what happens, happens because of watches."""
    yield from _world(base, replace(settings, resync_seconds=600.0, retry_seconds=600.0))


@pytest.fixture
def idle_world(base: Base, settings: OperatorConfig) -> Iterator[World]:
    """A world whose operator has not been started yet."""
    operator = Operator(base.namespace, base.admin, base.kubeconfig, settings, base.recording)
    yield World(base.namespace, base.admin, base.kubelet, operator)
    operator.stop()
