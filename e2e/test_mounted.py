"""What a real kubelet mounts: a model on a claim, a template and API keys from Secrets, and a record that somebody signed.

One story, as the README and docs/operator.md tell it to a person who has no record yet: fill the claim, trust the first pod, let it make
the record, sign that, and serve nothing but it.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AuthenticationError, OpenAI

from e2e import example
from e2e.conftest import Tiny
from e2e.support import service
from e2e.support.kube import apply, condition, eventually, get, kubectl, port_forward
from pratique_contract.record import ReleaseRecord
from tests.support.models import cache_dir

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

KEY = "the-pilots-key"


def fill_claim(tiny: Tiny, namespace: str) -> None:
    """As docs/operator.md says: a pod with ``tar``, ``kubectl cp``, and the pod goes."""
    image = json.loads((cache_dir() / "images.json").read_text(encoding="utf-8"))["server"]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    container = {
        "name": "loader",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "3600"],
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    }
    volumes = [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], "volumes": volumes}
    apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": claim},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "loader"}, "spec": pod},
        namespace=namespace,
    )
    kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/loader", "--timeout=120s", timeout=130)
    kubectl("cp", "-n", namespace, str(tiny.folder), "loader:/models/tiny")
    kubectl("delete", "pod", "-n", namespace, "loader")


def secret(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def mounted(tiny: Tiny, name: str, **release: Any) -> dict[str, Any]:
    return tiny.manifest(
        name,
        model={"uri": "pvc://models/tiny", "name": "tiny"},
        chatTemplate={"secretKeyRef": {"name": "template", "key": "chat.jinja"}},
        auth={"apiKeySecretRef": {"name": "keys"}},
        release=release,
    )


def ask(url: str, key: str) -> Any:
    with OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60.0) as api:
        return api.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=4, temperature=0
        )


def sign(file: Path, key: Path, name: str, namespace: str) -> None:
    """The record with its signature and the public key, each in a ConfigMap."""
    example.pratique("release", "sign", str(file), "--key", str(key))
    text = example.pratique("release", "show", str(file), "--format", "configmap", "--name", name)
    kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=text)
    public = {"release.pub": key.with_name(f"{key.name}.pub").read_text(encoding="utf-8")}
    apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "keyring"}, "data": public}, namespace=namespace
    )


def test_a_claim_a_secret_template_keys_and_a_signed_record_reach_a_pod_that_proves_them(
    namespace: str, tiny: Tiny, tmp_path: Path
) -> None:
    fill_claim(tiny, namespace)
    template = json.loads((tiny.folder / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    apply(secret("template", **{"chat.jinja": template}), secret("keys", harbour=KEY), namespace=namespace)
    apply(mounted(tiny, "trusting", policy="TrustFirst"), namespace=namespace)
    service.wait_ready("trusting", namespace, timeout=420)
    with port_forward("svc/trusting", 80, namespace=namespace) as url:
        assert ask(url, KEY).usage.completion_tokens > 0
        with pytest.raises(AuthenticationError):
            ask(url, "somebody-elses")
        assert httpx.get(f"{url}/v1/models").status_code == 401

    file, key, other = tmp_path / "record.json", tmp_path / "release.pem", tmp_path / "other.pem"
    example.pratique("release", "record", "--service", "trusting", "-n", namespace, "--output", str(file))
    record = ReleaseRecord.from_json(file.read_text(encoding="utf-8"))
    for made in (key, other):
        example.pratique("release", "keygen", str(made))
    sign(file, key, "signed", namespace)
    signature = {"configMapKeyRef": {"name": "keyring", "key": "release.pub"}}
    approved = {"fingerprint": record.fingerprint, "recordRef": {"name": "signed"}, "signature": signature}
    apply(mounted(tiny, "signed", **approved), namespace=namespace)
    ready = service.wait_ready("signed", namespace, timeout=420)
    verified = condition(ready, "FingerprintVerified")
    assert verified is not None
    assert (verified["status"], verified["reason"]) == ("True", "Verified")
    with port_forward("svc/signed", 80, namespace=namespace) as url:
        assert ask(url, KEY).system_fingerprint == record.fingerprint

    kubectl("delete", "psvc", "trusting", "-n", namespace, "--timeout=30s")
    public = other.with_name(f"{other.name}.pub").read_text(encoding="utf-8")
    foreign = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "foreign"},
        "data": {"release.pub": public},
    }
    apply(foreign, namespace=namespace)
    stranger = {**approved, "signature": {"configMapKeyRef": {"name": "foreign", "key": "release.pub"}}}
    apply(mounted(tiny, "unsigned", **stranger), namespace=namespace)
    eventually(
        lambda: service.reason_of("unsigned", namespace) == "SignatureInvalid", timeout=60, what="the key is refused"
    )
    assert get("pods", namespace=namespace, selector="serving.pratique.dev/service=unsigned") == []
