"""A registry of our own: the pull side of the OCI distribution protocol over blobs in memory, with the challenges real ones send.

``push`` takes layers and returns the manifest's digest. With ``password`` set, pulling needs a bearer token from ``/token``, which is given
for the name and password and lives for ``token_uses`` requests. ``address`` is where clients reach it, ``storage`` where it redirects them
for blobs: by default this server's other name.

``python -m tests.support.registry DIR --address URL --storage URL --tls CERT KEY`` serves every folder ``DIR/owner/name`` as an artifact.
This file needs the standard library and hub.py beside it only, so that it also runs in a pod.
"""

import argparse
import base64
import hashlib
import io
import json
import ssl
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.hub import Fault, Peer

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


def folder_layers(folder: Path) -> list[Layer]:
    """Each file of a folder as a layer, as `oras push` makes them."""
    return [file_layer(path.name, path.read_bytes()) for path in sorted(folder.iterdir()) if path.is_file()]


def make_manifest(layers: "list[Layer] | tuple[Layer, ...]", **fields: Any) -> dict[str, Any]:
    entries = [
        {
            "mediaType": layer.media_type,
            "digest": digest_of(layer.content),
            "size": len(layer.content),
            "annotations": dict(layer.annotations),
        }
        for layer in layers
    ]
    return {"schemaVersion": 2, "mediaType": MANIFEST, "layers": entries, **fields}


def artifact_digest(folder: Path) -> str:
    """The digest under which a registry that serves the folder has it."""
    return digest_of(json.dumps(make_manifest(folder_layers(folder))).encode())


class Registry(Peer):
    def __init__(
        self,
        *,
        username: str = "robot",
        password: str | None = None,
        basic: bool = False,
        token_uses: int = 10**6,
        address: str | None = None,
        storage: str | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(port=port, host=host, tls=tls)
        self.host = f"127.0.0.1:{self.port}"
        self._address = address or self.url
        self._storage = storage or self._address.replace("127.0.0.1", "localhost")
        self._blobs: dict[str, bytes] = {}
        self._manifests: dict[str, tuple[str, bytes]] = {}
        self._username, self._password, self._basic = username, password, basic
        self._tokens: dict[str, int] = {}
        self._token_uses = token_uses

    def push(self, *layers: Layer, **fields: Any) -> str:
        """A manifest with these layers; its digest."""
        self._blobs |= {digest_of(layer.content): layer.content for layer in layers}
        return self.push_manifest(make_manifest(layers, **fields))

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
            location = f"{self._storage}/storage/{path.rpartition('/')[2]}?X-Amz-Signature=very-secret"
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
        bearer = f'Bearer realm="{self._address}/token",service="registry",scope="repository:models/tiny:pull"'
        request.send(401, b"", {"WWW-Authenticate": 'Basic realm="registry"' if self._basic else bearer})

    def _send_token(self, request: Any) -> None:
        if request.headers["Authorization"] != self._basic_header():
            request.send(401, b"")
            return
        token = f"token-{len(self._tokens)}-of-this-registry"
        self._tokens[token] = self._token_uses
        request.send_json({"token": token})


def main() -> None:
    """Serve until killed; prints each artifact's digest first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="folder with one folder per owner, and in it one per artifact")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--address", required=True, help="URL under which clients reach this server")
    parser.add_argument(
        "--storage", required=True, help="URL that blobs are redirected to: this server by another name"
    )
    parser.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"), required=True)
    parser.add_argument("--password", help="of the user robot; without it everybody may pull")
    parser.add_argument("--corrupt", action="append", default=[], help="glob of paths to answer with one wrong byte")
    options = parser.parse_args()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*options.tls)
    registry = Registry(
        password=options.password,
        address=options.address,
        storage=options.storage,
        port=options.port,
        host=options.host,
        tls=tls,
    )
    registry.faults += [Fault(path=glob, flip=0) for glob in options.corrupt]
    for folder in sorted(options.root.glob("*/*")):
        print(f"{folder.relative_to(options.root)}@{registry.push(*folder_layers(folder))}", flush=True)
    registry.serve_forever()


if __name__ == "__main__":
    main()
