"""The chart through helm itself: lint, the rendered objects, and what an API server says to them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from e2e.install import helm
from e2e.up import make_context
from pratique_contract import constants
from pratique_operator.api.crd import crd_yaml
from pratique_operator.config import read_config
from pratique_operator.network import NetworkAccess
from tests.integration.operator.conftest import REPOSITORY

pytestmark = pytest.mark.integration

CHART = REPOSITORY / "charts" / "pratique"
PEM = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----\n"
IMAGES = ("--set=image=localhost/operator:1", "--set=serverImage=localhost/server:1")


@pytest.fixture(scope="module")
def program() -> Path:
    """helm, built from its pinned Go module and cached."""
    return helm(make_context())


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def render(program: Path, *arguments: str, release: str = "pratique") -> dict[str, Any]:
    """Rendered objects by kind/name."""
    result = run(program, "template", release, str(CHART), "--kube-version=1.34.4", "-n", "system", *IMAGES, *arguments)
    assert result.returncode == 0, result.stderr
    return {f"{o['kind']}/{o['metadata']['name']}": o for o in yaml.safe_load_all(result.stdout) if o}


def test_lint_is_clean(program: Path) -> None:
    result = run(program, "lint", "--strict", str(CHART), *IMAGES)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("image", ["a/b:latest", "a/b", ""])
def test_image_without_a_version_is_refused(program: Path, image: str) -> None:
    result = run(
        program, "template", str(CHART), "--kube-version=1.34.4", "--set=serverImage=a/c:1", f"--set=image={image}"
    )
    assert result.returncode != 0
    assert "image" in result.stderr


def test_unknown_value_is_refused(program: Path) -> None:
    result = run(program, "template", str(CHART), "--kube-version=1.34.4", *IMAGES, "--set=replica=2")
    assert "replica" in result.stderr


def test_operator_is_one_restricted_pod_with_liveness_on_its_heartbeat(program: Path) -> None:
    deployment = render(program)["Deployment/pratique-operator"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["operator"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_values_reach_the_operators_settings(program: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.pem"
    keys.write_text(PEM)
    values = [
        "--set=allowFileSources=true",
        "--set=requireSignature=true",
        f"--set-file=signatureKeys={keys}",
        "--set=watchNamespaces={a,b}",
        "--set=operatorName=blue",
        "--set=resyncSeconds=60",
    ]
    container = render(program, *values)["Deployment/pratique-operator"]["spec"]["template"]["spec"]["containers"][0]
    config = read_config({variable["name"]: variable["value"] for variable in container["env"]})
    assert (config.server_image, config.allow_file_sources) == ("localhost/server:1", True)
    assert (config.watch_namespaces, config.operator_name, config.resync_seconds) == (("a", "b"), "blue", 60.0)
    assert (config.require_signature, config.signature_keys) == (True, PEM.strip())


def test_operator_is_always_among_those_that_reach_the_management_port(program: Path, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    clients = {"ipBlock": {"cidr": "10.0.0.0/8"}}
    values.write_text(yaml.safe_dump({"networkPolicy": {"managementFrom": [monitoring], "apiFrom": [clients]}}))
    deployment = render(program, f"--values={values}")["Deployment/pratique-operator"]
    access = network_of(deployment)
    assert access is not None
    own, other = access.management_from
    assert own["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "system"}}
    pods = deployment["spec"]["template"]["metadata"]["labels"]
    assert own["podSelector"]["matchLabels"] == deployment["spec"]["selector"]["matchLabels"]
    assert own["podSelector"]["matchLabels"].items() <= pods.items()
    assert (other, access.api_from) == (monitoring, (clients,))
    by_default = network_of(render(program)["Deployment/pratique-operator"])
    assert by_default == NetworkAccess(management_from=(own,))
    assert network_of(render(program, "--set=networkPolicy.enabled=false")["Deployment/pratique-operator"]) is None


def network_of(deployment: dict[str, Any]) -> NetworkAccess | None:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return read_config({variable["name"]: variable["value"] for variable in container["env"]}).network


def test_rights_are_cluster_wide_only_without_a_list_of_namespaces(program: Path) -> None:
    assert "ClusterRoleBinding/pratique-operator" in render(program)
    listed = render(program, "--set=watchNamespaces={a,b}")
    assert "ClusterRoleBinding/pratique-operator" not in listed
    assert listed["RoleBinding/pratique-operator"]["roleRef"]["kind"] == "ClusterRole"


def test_release_of_any_name_gives_distinct_objects(program: Path) -> None:
    assert "Deployment/blue-pratique-operator" in render(program, release="blue")


def test_chart_holds_the_generated_crd() -> None:
    file = CHART / "crds" / f"{constants.GROUP}_{constants.PLURAL}.yaml"
    assert file.read_text() == crd_yaml()


def test_api_server_takes_every_rendered_object(program: Path, admin: client.ApiClient, namespace: str) -> None:
    """Dry run on a real server with strict field validation."""
    paths = {
        "Deployment": f"/apis/apps/v1/namespaces/{namespace}/deployments",
        "ServiceAccount": f"/api/v1/namespaces/{namespace}/serviceaccounts",
        "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    }
    for name, manifest in render(program, release=namespace).items():
        body = {**manifest, "metadata": {**manifest["metadata"]}}
        if "namespace" in body["metadata"]:
            body["metadata"]["namespace"] = namespace
        url = f"{admin.configuration.host}{paths[body['kind']]}?dryRun=All&fieldValidation=Strict"
        answer = admin.rest_client.pool_manager.request("POST", url, json=body)
        assert answer.status == 201, f"{name}: {answer.data.decode()}"
