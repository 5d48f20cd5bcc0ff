"""``pratique cache prune`` asks the API server what is used, with the rights of the example and no others."""

import base64
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from pratique_contract.sources import cache_folder
from pratique_operator import kinds
from pratique_operator.kinds import Kind
from tests.integration.operator.world import World
from tests.unit.cli.conftest import Result, Run

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "cache-prune.yaml"
COMMIT = "0" * 40
MODEL, ADAPTER, TOKENIZER = (f"hf://owner/{name}" for name in ("model", "adapter", "tokenizer"))
UNUSED, OF_POD, OF_DEPLOYMENT = (f"hf-{digit * 24}" for digit in "abc")


def folder_of(uri: str) -> str:
    return Path(cache_folder(uri, COMMIT)).name


def fill(root: Path, *names: str) -> None:
    """Finished folders that nobody has looked at for a month."""
    then = time.time() - 30 * 86400
    for name in names:
        folder = root / name
        folder.mkdir(parents=True)
        (folder / ".pratique-fetch.json").write_text("{}")
        os.utime(folder / ".pratique-fetch.json", (then, then))


@pytest.fixture
def kubeconfig(bare: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Kind]:
    """Logs in as an account with the example's Role; the kinds it may list."""
    documents = {document["kind"]: document for document in yaml.safe_load_all(EXAMPLE.read_text())}
    for name in ("ServiceAccount", "Role", "RoleBinding"):
        body = documents[name]
        body["metadata"]["namespace"] = bare.namespace
        for subject in body.get("subjects", ()):
            subject["namespace"] = bare.namespace
        kind = Kind(body["apiVersion"], name, f"{name.lower()}s")
        if bare.cluster.get(kind, bare.namespace, body["metadata"]["name"]) is None:
            bare.cluster.create(kind, bare.namespace, body)
    path = kinds.SERVICE_ACCOUNT.path(bare.namespace, "cache-prune", "token")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = bare.cluster._call("POST", path, body=request)["status"]["token"]
    settings = bare.admin.configuration
    authority = base64.b64encode(Path(settings.ssl_ca_cert).read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": settings.host, "certificate-authority-data": authority}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(file))
    # The client remembers which file that is when it is imported.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    return [kinds.POD, kinds.DEPLOYMENT, kinds.INFERENCE_SERVICE]


def pod_spec(folder: str) -> dict[str, Any]:
    mount = {"name": "cache", "mountPath": "/models/x", "subPath": folder, "readOnly": True}
    return {
        "schedulerName": "nobody",
        "containers": [{"name": "server", "image": "localhost/none:1", "volumeMounts": [mount]}],
        "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}],
    }


def prune(run: Run, root: Path, *arguments: str) -> Result:
    return run("cache", "prune", root, *arguments)


def test_what_a_service_a_deployment_or_a_pod_names_stays(
    bare: World,
    kubeconfig: list[Kind],
    tmp_path: Path,
    pratique: Run,
) -> None:
    bare.create(
        "service",
        model={
            "uri": MODEL,
            "revision": COMMIT,
            "adapters": [{"name": "a", "uri": ADAPTER, "revision": COMMIT}],
        },
        tokenizer={"uri": TOKENIZER, "revision": COMMIT},
        replicas=0,
        release={"policy": "TrustFirst"},
    )
    bare.cluster.create(
        kinds.POD,
        bare.namespace,
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod_spec(OF_POD)},
    )
    template = {"metadata": {"labels": {"app": "d"}}, "spec": pod_spec(OF_DEPLOYMENT)}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "d"}}, "template": template}
    bare.cluster.create(
        kinds.DEPLOYMENT,
        bare.namespace,
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec},
    )
    used = {folder_of(MODEL), folder_of(ADAPTER), folder_of(TOKENIZER), OF_POD, OF_DEPLOYMENT}
    root = tmp_path / "cache"
    fill(root, *used, UNUSED)
    plan = prune(pratique, root, "-n", bare.namespace, "--dry-run")
    assert (plan.code, f"{UNUSED}: would go" in plan.out) == (0, True), plan.err
    assert (root / UNUSED).is_dir()
    result = prune(pratique, root, "-n", bare.namespace)
    assert result.code == 0, result.err
    assert {path.name for path in root.iterdir() if not path.name.startswith(".")} == used
    assert f"{UNUSED}: removed" in result.out
    assert result.out.count("kept, in use") == len(used)


def test_who_may_not_ask_everywhere_removes_nothing(
    bare: World,
    kubeconfig: list[Kind],
    tmp_path: Path,
    pratique: Run,
) -> None:
    root = tmp_path / "cache"
    fill(root, UNUSED)
    for arguments in (("--all-namespaces",), ("-n", bare.namespace, "-n", "default")):
        result = prune(pratique, root, *arguments)
        assert (result.code, "HTTP 403 Forbidden: pods is forbidden" in result.err) == (3, True), result.err
        assert "cache-prune" in result.err  # the account, in the API server's words
        assert (root / UNUSED).is_dir()


def test_an_api_server_that_does_not_answer_costs_no_folder(
    kubeconfig: list[Kind],
    tmp_path: Path,
    pratique: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, file = tmp_path / "cache", tmp_path / "kubeconfig"
    fill(root, UNUSED)
    config = yaml.safe_load(file.read_text())
    config["clusters"][0]["cluster"] = {"server": "http://127.0.0.1:9"}
    file.write_text(yaml.safe_dump(config))
    result = prune(pratique, root, "-A")
    assert (result.code, "does not answer" in result.err) == (3, True), result.err
    assert (root / UNUSED).is_dir()
