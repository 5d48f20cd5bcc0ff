"""A bucket and a registry as the source: the tiny model gets from each to a pod that proves its release and answers; what a wrong
credential and other bytes lead to is in the CR.

The S3 server is moto, the registry our own (tests/support/registry.py) over TLS with an authority of the test's, bearer tokens, and blobs
that it redirects to another name. All services run side by side.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from e2e.cluster.lifecycle import Context
from e2e.conftest import Tiny
from e2e.support import service, sources
from e2e.support.kube import apply
from pratique_contract.record import ReleaseRecord
from tests.support import models, mutations, registry, s3

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAMESPACE = "e2e-sources"
PASSWORD = "pa55word-of-the-registry"
BUCKET = "models"


@dataclass(frozen=True)
class Sources:
    """The namespace they are in, the tiny model, its record as an artifact, and its copy with one other byte in the weights."""

    tiny: Tiny
    artifact: str
    manifest: Mapping[str, Any]
    record: ReleaseRecord
    altered: Path

    def from_registry(self, name: str, *, secret: str, uri: str | None = None) -> dict[str, Any]:
        manifest = self.tiny.manifest(name, release=self.manifest["spec"]["release"])
        manifest["spec"]["model"] |= {"uri": uri or self.artifact}
        manifest["spec"]["download"] = {"credentialsSecretRef": {"name": secret}}
        return manifest

    def from_bucket(self, name: str, *, prefix: str = "tiny", secret: str, server: str = "s3") -> dict[str, Any]:
        endpoint = f"http://{server}.{NAMESPACE}.svc"
        manifest = self.tiny.manifest(name, download={"s3Endpoint": endpoint, "credentialsSecretRef": {"name": secret}})
        manifest["spec"]["model"] |= {"uri": f"s3://{BUCKET}/{prefix}"}
        return manifest


def artifact_uri(name: str, digest: str) -> str:
    return f"oci://registry.{NAMESPACE}.svc/{name}@{digest}"


def secret(name: str, **values: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}


def certificate(authority: trustme.CA) -> dict[str, Any]:
    """For the registry's two names."""
    issued = authority.issue_cert(f"registry.{NAMESPACE}.svc", f"storage.{NAMESPACE}.svc")
    pem = {
        "tls.crt": b"".join(piece.bytes() for piece in issued.cert_chain_pems),
        "tls.key": issued.private_key_pem.bytes(),
    }
    data = {key: base64.b64encode(value).decode() for key, value in pem.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "registry-tls"}, "data": data}


@pytest.fixture(scope="module")
def places(context: Context, tiny: Tiny) -> Iterator[Sources]:
    """Bucket and registry with the model in them, and every service of this file applied."""
    altered = mutations.copy_of(tiny.folder, models.cache_dir() / "models" / "e2e-s3" / "altered")
    mutations.flip_weight_byte(altered)
    artifact = artifact_uri("models/tiny", registry.artifact_digest(tiny.folder))
    manifest, record = sources.record_from(context, tiny, name="artifact", model={"uri": artifact})
    made = Sources(tiny=tiny, artifact=artifact, manifest=manifest, record=record, altered=altered)
    authority, image = trustme.CA(), sources.server_image(context)
    trusted = authority.cert_pem.bytes().decode()
    held = {"models/tiny": tiny.folder, "models/corrupt": tiny.folder}
    arguments = ["--address", f"https://registry.{NAMESPACE}.svc", "--storage", f"https://storage.{NAMESPACE}.svc"]
    arguments += ["--password", PASSWORD, "--corrupt", "/v2/models/corrupt/manifests/*"]
    with sources.namespace_of_its_own(NAMESPACE):
        apply(
            sources.describe_programs(),
            certificate(authority),
            secret("robot", username="robot", password=PASSWORD, **{"ca.crt": trusted}),
            secret("stranger", username="robot", password="guessed-it", **{"ca.crt": trusted}),
            secret("untrusting", username="robot", password=PASSWORD),
            secret("keys", accessKeyId=s3.ACCESS_KEY, secretAccessKey=s3.SECRET_KEY),
            tiny.record_map("tiny-release"),
            tiny.record_map("artifact-release", record),
            *sources.describe_registry(image, "registry", held, *arguments),
            sources.describe_entry("storage", "registry", 443),
            *sources.describe_s3(image, "s3", {f"{BUCKET}/tiny": tiny.folder, f"{BUCKET}/altered": altered}),
            # It knows no user at all, so the keys that open the other one are wrong here.
            *sources.describe_s3(image, "s3-closed", {}, INITIAL_NO_AUTH_ACTION_COUNT="0"),
            namespace=NAMESPACE,
        )
        sources.wait_for_places(NAMESPACE, "registry", "s3", "s3-closed")
        corrupt = artifact_uri("models/corrupt", registry.artifact_digest(tiny.folder))
        missing = artifact_uri("models/tiny", f"sha256:{'0' * 64}")
        apply(
            made.from_registry("from-oci", secret="robot"),
            made.from_registry("oci-stranger", secret="stranger"),
            made.from_registry("oci-corrupt", secret="robot", uri=corrupt),
            made.from_registry("oci-missing", secret="robot", uri=missing),
            made.from_registry("oci-untrusted", secret="untrusting"),
            made.from_bucket("from-s3", secret="keys"),
            made.from_bucket("s3-stranger", secret="keys", server="s3-closed"),
            made.from_bucket("s3-altered", secret="keys", prefix="altered"),
            made.from_bucket("s3-missing", secret="keys", prefix="nothing/here"),
            namespace=NAMESPACE,
        )
        yield made


@pytest.mark.parametrize("name", ["from-s3", "from-oci"])
def test_the_model_is_fetched_proves_its_release_and_answers(places: Sources, name: str) -> None:
    service.wait_ready(name, NAMESPACE, timeout=180)
    with service.openai_client(name, NAMESPACE) as api:
        answer = api.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=4, temperature=0
        )
    assert answer.choices[0].finish_reason in ("stop", "length")
    # Where identical bytes lie is not identity; an artifact's digest is.
    record = places.tiny.record if name == "from-s3" else places.record
    assert answer.system_fingerprint == record.fingerprint


@pytest.mark.parametrize(
    ("name", "reason", "says"),
    [
        (
            "oci-stranger",
            "DownloadUnauthorized",
            ("a token for models/tiny", "status 401", "credentials in the Secret"),
        ),
        ("oci-corrupt", "DownloadCorrupt", ("sent a manifest of digest sha256:", "asked for was sha256:")),
        ("oci-missing", "DownloadNotFound", ("0" * 64, "models/tiny", "MANIFEST_UNKNOWN")),
        ("oci-untrusted", "DownloadFailed", (f"registry.{NAMESPACE}.svc is not trusted", "ca.crt")),
        (
            "s3-stranger",
            "DownloadUnauthorized",
            ("s3://models/tiny", "InvalidAccessKeyId", "credentials in the Secret"),
        ),
        ("s3-altered", "DownloadCorrupt", ("model.safetensors is sha256:", "the release record says sha256:")),
        ("s3-missing", "DownloadNotFound", ("s3://models/nothing/here", "holds no object", "the prefix")),
    ],
)
def test_what_is_wrong_is_in_the_cr(places: Sources, name: str, reason: str, says: tuple[str, ...]) -> None:
    message = sources.wait_reason(name, NAMESPACE, reason, timeout=90)
    assert [part for part in says if part not in message] == [], message
    assert PASSWORD not in message
    assert service.ready_endpoints(name, NAMESPACE) == []
