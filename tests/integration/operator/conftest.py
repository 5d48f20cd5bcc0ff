"""The operator from the source tree against the real API server of the test cluster.

Each test has an empty namespace and pods on a node that ``FakeKubelet`` plays. One operator lives through all tests of a worker, as
operators do; tests that stop it or need another pace have one of their own. It logs in as a ServiceAccount with exactly the chart's
rules. Without a cluster this fails.
"""

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from pratique_contract import constants
from pratique_operator import kinds
from pratique_operator.api.crd import build_crd
from pratique_operator.cluster import ApiCluster
from pratique_operator.config import OperatorConfig
from pratique_operator.kinds import Kind
from pratique_operator.network import NetworkAccess
from tests.integration.operator.changes import Watch, eventually
from tests.integration.operator.kubelet import FakeKubelet
from tests.integration.operator.namespaces import Namespaces, create_namespace, delete_namespace
from tests.integration.operator.running import Operator
from tests.integration.operator.world import World
from tests.unit.cli.conftest import pratique  # noqa: F401 - a fixture

REPOSITORY = Path(__file__).resolve().parents[3]
NAMESPACES = 2
# Tests cut operators wherever they are, and kopf leaves its client's session, connector or socket open when it is cut while it connects,
# where a process would end. The collector finds them in whichever test comes next.
CUT_CONNECTIONS = (
    r"ignore:Exception ignored in. <(socket|function (_S[A-Za-z]*Transport|BaseConnector|ClientSession)\b)"
    r":pytest.PytestUnraisableExceptionWarning"
)
# As the chart makes it; here the operator runs outside the cluster, so that nobody is this peer.
NETWORK = NetworkAccess(
    management_from=({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "pratique-system"}}},)
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings(CUT_CONNECTIONS))


def kubeconfig() -> Path:
    if os.environ.get("PRATIQUE_CLUSTER") == "existing":
        return Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    return Path(os.environ.get("PRATIQUE_CACHE") or Path.home() / ".cache" / "pratique").expanduser() / "kubeconfig"


@pytest.fixture(scope="session")
def admin() -> client.ApiClient:
    """The cluster's administrator."""
    path = kubeconfig()
    if not path.is_file():
        pytest.fail(f"There is no cluster: {path} does not exist; run `make cluster`", pytrace=False)
    settings = client.Configuration()
    config.load_kube_config(str(path), client_configuration=settings)
    api = client.ApiClient(settings)
    cluster, crd = ApiCluster(api, timeout_seconds=20), build_crd()
    cluster.apply(_CRD, "", crd)

    def established() -> bool:
        found = cluster.get(_CRD, "", crd["metadata"]["name"]) or {}
        conditions = found.get("status", {}).get("conditions") or ()  # null at first, in a cluster that never had it
        return any((c["type"], c["status"]) == ("Established", "True") for c in conditions)

    eventually(established, what="the CRD is established")
    return api


_CLUSTER_ROLE = Kind("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles")
_CRD = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")


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
    cluster = ApiCluster(admin, timeout_seconds=20)
    body = {"apiVersion": _CLUSTER_ROLE.api_version, "kind": _CLUSTER_ROLE.kind, "metadata": {"name": name}}
    cluster.create(_CLUSTER_ROLE, "", {**body, "rules": chart_rules})
    yield name
    cluster._call("DELETE", _CLUSTER_ROLE.path(None, name))


@pytest.fixture(scope="session")
def namespaces(
    admin: client.ApiClient, role: str, kubelet: FakeKubelet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Namespaces]:
    """This worker's namespaces, and a watch of the services in them that tells ``eventually`` when to look again."""
    run = uuid.uuid4().hex[:8]
    names = tuple(f"pratique-it-{run}-{number}" for number in range(NAMESPACES))
    owners = f"{constants.LABEL_OPERATOR} in ({','.join((*names, shared_name(names)))})"
    watch = Watch(admin, kinds.INFERENCE_SERVICE, selector=owners, changed=lambda: None)
    watch.start()
    found = Namespaces(admin, names, role, tmp_path_factory.mktemp("kubeconfigs"))
    yield found
    watch.stop()
    found.delete()


def shared_name(names: tuple[str, ...]) -> str:
    """The name of the operator that looks after all of a worker's namespaces."""
    return f"{names[0]}-shared"


@pytest.fixture
def namespace(namespaces: Namespaces, kubelet: FakeKubelet) -> Iterator[str]:
    name = namespaces.take()
    yield name
    kubelet.outcomes.pop(name, None)
    namespaces.give_back(name)


@pytest.fixture
def bare(admin: client.ApiClient, shared_namespace: str, kubelet: FakeKubelet, tmp_path: Path) -> World:
    """A namespace for several tests, without an operator."""
    settings = OperatorConfig(operator_name="nobody")
    return World(shared_namespace, admin, kubelet, Operator(tmp_path, settings, set()))


@pytest.fixture(scope="module")
def shared_namespace(admin: client.ApiClient) -> Iterator[str]:
    cluster, name = ApiCluster(admin, timeout_seconds=20), f"pratique-it-{uuid.uuid4().hex[:8]}"
    create_namespace(cluster, name)
    yield name
    delete_namespace(cluster, name)


@pytest.fixture
def settings(namespace: str) -> OperatorConfig:
    """Of an operator of the test's own: this namespace only."""
    return configure(namespace, (namespace,))


def configure(operator_name: str, namespaces: tuple[str, ...]) -> OperatorConfig:
    """Settings that are quick about what no watch tells."""
    return OperatorConfig(
        allow_file_sources=True,
        watch_namespaces=namespaces,
        operator_name=operator_name,
        resync_seconds=2.0,
        retry_seconds=0.5,
        reference_seconds=0.3,
        verdict_poll_seconds=0.3,
        network=NETWORK,
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

    def world(self, settings: OperatorConfig) -> World:
        operator = Operator(self.kubeconfig, settings, self.recording)
        return World(self.namespace, self.admin, self.kubelet, operator)


@pytest.fixture
def base(
    admin: client.ApiClient,
    namespaces: Namespaces,
    namespace: str,
    kubelet: FakeKubelet,
    recording: set[tuple[str, str, str]],
) -> Base:
    return Base(admin, namespace, kubelet, namespaces.kubeconfig, recording)


@pytest.fixture(scope="session")
def shared_operator(namespaces: Namespaces, recording: set[tuple[str, str, str]]) -> Iterator[Operator]:
    """An operator that is there whatever the test."""
    settings = configure(shared_name(namespaces.names), namespaces.names)
    operator = Operator(namespaces.kubeconfig, settings, recording)
    operator.start()
    yield operator
    operator.stop()


@pytest.fixture
def world(base: Base, shared_operator: Operator) -> Iterator[World]:
    """The namespace and the operator that is always there: not to be stopped."""
    yield World(base.namespace, base.admin, base.kubelet, shared_operator)
    shared_operator.check()
    shared_operator.forget()


@pytest.fixture
def idle_world(base: Base, settings: OperatorConfig) -> Iterator[World]:
    """A world whose operator has not been started yet."""
    world = base.world(settings)
    yield world
    world.operator.stop()


@pytest.fixture
def own_world(idle_world: World) -> World:
    """A world with an operator that may be stopped."""
    idle_world.operator.start()
    return idle_world


@pytest.fixture
def quick_world(base: Base, settings: OperatorConfig) -> Iterator[World]:
    """A world whose operator looks again and again although nothing moves."""
    yield from _run(base.world(replace(settings, resync_seconds=0.25)))


@pytest.fixture
def slow_world(base: Base, settings: OperatorConfig) -> Iterator[World]:
    """A world whose operator resyncs too rarely to help: what happens, happens because of watches."""
    yield from _run(base.world(replace(settings, resync_seconds=600.0, retry_seconds=600.0)))


def _run(world: World) -> Iterator[World]:
    world.operator.start()
    yield world
    world.operator.stop()
