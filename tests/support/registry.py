"""A registry of our own: the pull side of the OCI distribution protocol over blobs in memory, with the challenges real ones send.

``push`` takes layers and returns the manifest's digest. With ``password`` set, pulling needs a bearer token from ``/token``, which is given
for the name and password and lives for ``token_uses`` requests. ``storage`` redirects blobs to this server's other name.
"""

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.hub import Peer

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
PLAIN_LAYER = "application/vnd.oci.image.layer.v1.tar"  # what pushing clients call a plain file, too
IMAGE_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
TITLE = "org.opencontainers.image.title"


@dataclass(frozen=True)
class Layer:
    content: bytes
    media_type: str = PLAIN_LAYER
    annotations: Mapping[str, str] = field(default_factory=dict)


def file_layer(name: str, content: bytes) -> Layer:
    return Layer(content, annotations={TITLE: name})


def image_layer(files: Mapping[str, bytes], *, mode: str = "w:gz") -> Layer:
    return Layer(make_tar(files, mode=mode), media_type=IMAGE_LAYER)


def make_tar(
    files: Mapping[str, bytes], *, mode: str = "w:gz", members: "list[tarfile.TarInfo] | None" = None
) -> bytes:
    """A tar archive of files, and of members without content (links, devices)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for member in members or []:
            tar.addfile(member)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Registry(Peer):
    def __init__(
        self, *, username: str = "robot", password: str | None = None, basic: bool = False, token_uses: int = 10**6
    ) -> None:
        super().__init__()
        self.host = f"127.0.0.1:{self.port}"
        self._blobs: dict[str, bytes] = {}
        self._manifests: dict[str, tuple[str, bytes]] = {}
        self._username, self._password, self._basic = username, password, basic
        self._tokens: dict[str, int] = {}
        self._token_uses = token_uses

    def push(self, *layers: Layer, **fields: Any) -> str:
        """A manifest with these layers; its digest."""
        entries = []
        for layer in layers:
            digest = digest_of(layer.content)
            self._blobs[digest] = layer.content
            entries.append(
                {
                    "mediaType": layer.media_type,
                    "digest": digest,
                    "size": len(layer.content),
                    "annotations": dict(layer.annotations),
                }
            )
        return self.push_manifest({"schemaVersion": 2, "mediaType": MANIFEST, "layers": entries, **fields})

    def push_manifest(self, manifest: dict[str, Any]) -> str:
        content = json.dumps(manifest).encode()
        digest = digest_of(content)
        self._manifests[digest] = (manifest.get("mediaType", MANIFEST), content)
        return digest

    def answer(self, request: Any) -> None:
        path = request.route
        if path == "/token":
            self._send_token(request)
        elif path.startswith("/storage/"):
            # Storage knows nothing of the registry's tokens and refuses what it does not know.
            if request.headers["Authorization"] is not None:
                request.send(400, b"only one auth mechanism allowed")
            else:
                request.send_content(self._blobs[path.removeprefix("/storage/")], {})
        elif not self._is_welcome(request):
            self._challenge(request)
        elif "/manifests/" in path and path.rpartition("/")[2] in self._manifests:
            kind, content = self._manifests[path.rpartition("/")[2]]
            request.send_content(content, {"Content-Type": kind})
        elif "/blobs/" in path and path.rpartition("/")[2] in self._blobs:
            location = f"http://localhost:{self.port}/storage/{path.rpartition('/')[2]}?X-Amz-Signature=very-secret"
            request.send(307, b"", {"Location": location})
        else:
            body = json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN"}]}).encode()
            request.send(404, body, {"Content-Type": "application/json"})

    def _is_welcome(self, request: Any) -> bool:
        if self._password is None:
            return True
        shown = request.headers["Authorization"] or ""
        if self._basic:
            return bool(shown == self._basic_header())
        token = shown.removeprefix("Bearer ")
        left = self._tokens.get(token, 0)
        self._tokens[token] = left - 1
        return left > 0

    def _basic_header(self) -> str:
        return "Basic " + base64.b64encode(f"{self._username}:{self._password}".encode()).decode()

    def _challenge(self, request: Any) -> None:
        bearer = f'Bearer realm="{self.url}/token",service="registry",scope="repository:models/tiny:pull"'
        request.send(401, b"", {"WWW-Authenticate": 'Basic realm="registry"' if self._basic else bearer})

    def _send_token(self, request: Any) -> None:
        if request.headers["Authorization"] != self._basic_header():
            request.send(401, b"")
            return
        token = f"token-{len(self._tokens)}-of-this-registry"
        self._tokens[token] = self._token_uses
        request.send_json({"token": token})
