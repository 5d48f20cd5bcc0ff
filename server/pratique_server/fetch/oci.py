"""A manifest in an OCI registry, by digest: an artifact whose layers are files, or an image whose layers are tar archives.

The chain of digests begins in the URI: it names the manifest, the manifest names every layer by sha256 and size, and a layer is either
a file itself (its name is an annotation) or an archive.
"""

import base64
import json
import platform
import re
import threading
from collections.abc import Generator
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx

from pratique_contract.canonical import JSON_ERRORS, digest_bytes, is_digest
from pratique_server.fetch.errors import CorruptError, FetchError
from pratique_server.fetch.hashing import Checksum
from pratique_server.fetch.http_client import explain_transport, raise_for_status
from pratique_server.fetch.remote import Listing, RemoteFile, Request
from pratique_server.fetch.secrets import Credentials
from pratique_server.fetch.selection import Wanted, require_usable, select
from pratique_server.fetch.uris import OciSource

MANIFEST_TYPES: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEX_TYPES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
TITLE_ANNOTATION: Final = "org.opencontainers.image.title"
UNPACK_ANNOTATION: Final = "io.deis.oras.content.unpack"
MODELPACK_ANNOTATION: Final = "org.cncf.model.filepath"
ARCHIVE_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz")
MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024  # what registries accept
LAYERS_MAX: Final = 1024
# A token may run out again before the request that asked for it gets there: its neighbours use it too.
TOKENS_TRIED_MAX: Final = 4
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class OciRemote:
    """Plain HTTP only to a registry on this machine, as container engines do."""

    def __init__(self, source: OciSource, wanted: Wanted, *, client: httpx.Client, credentials: Credentials) -> None:
        self._source = source
        self._wanted = wanted
        self._client = client
        scheme = "http" if urlsplit(f"//{source.registry}").hostname in _LOOPBACK else "https"
        self._base = f"{scheme}://{source.registry}/v2/{source.repository}"
        self._auth = RegistryAuth(source, client=client, credentials=credentials, base=self._base)

    def list(self) -> Listing:
        manifest = self._read_manifest(self._source.digest)
        if _media_type(manifest) in INDEX_TYPES or "manifests" in manifest:
            manifest = self._read_manifest(_choose_manifest(manifest, self._name()))
        layers = manifest.get("layers")
        if not isinstance(layers, list) or not layers or len(layers) > LAYERS_MAX:
            raise FetchError(f"The manifest of {self._name()} names no layers, or more than {LAYERS_MAX}")
        files = [_file(layer, index, self._name()) for index, layer in enumerate(layers)]
        plain = [file for file in files if file is not None and not file.archive]
        archives = [file for file in files if file is not None and file.archive]
        selection = select((file.path for file in plain), self._wanted)
        if not archives:
            require_usable(selection, self._wanted, self._name())
        chosen = {file.path: file for file in plain if file.path in selection.taken}
        return Listing(files=(*chosen.values(), *archives), left_out=selection.left_out, revision=self._source.digest)

    def locate(self, file: RemoteFile) -> Request:
        return Request(url=f"{self._base}/blobs/{file.key}", auth=self._auth)

    def check(self, file: RemoteFile, response: httpx.Response) -> None:
        """The layer's own digest says it all."""

    def _name(self) -> str:
        return f"oci://{self._source.registry}/{self._source.repository}@{self._source.digest}"

    def _read_manifest(self, digest: str) -> dict[str, Any]:
        url = f"{self._base}/manifests/{digest}"
        headers = {"Accept": ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))}
        content = b""
        try:
            with self._client.stream("GET", url, headers=headers, auth=self._auth) as response:
                raise_for_status(response, f"manifest {digest} of {self._source.repository}")
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > MANIFEST_BYTES_MAX:
                        raise FetchError(f"The manifest of {self._name()} has more than {MANIFEST_BYTES_MAX} bytes")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise explain_transport(error, url) from error
        if digest_bytes(content) != digest:
            raise CorruptError(
                f"{self._source.registry} sent a manifest of digest {digest_bytes(content)}; asked for was {digest}",
                transient=True,
            )
        try:
            manifest = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise FetchError(f"The manifest {digest} is not JSON: {error}") from error
        if not isinstance(manifest, dict):
            raise FetchError(f"The manifest {digest} is not a JSON object")
        return manifest


class RegistryAuth(httpx.Auth):
    """Answers a registry's challenge: Basic with the Secret's name and password, or a bearer token from the place it names.

    A token is kept for all requests and asked for again when the registry refuses it (they live for minutes). Credentials go to the
    registry and to the token service it names over TLS, never along a redirect.
    """

    requires_response_body = False

    def __init__(self, source: OciSource, *, client: httpx.Client, credentials: Credentials, base: str) -> None:
        self._source = source
        self._client = client
        self._host = httpx.URL(base).host
        self._secure = base.startswith("https:")
        self._basic: str | None = None
        if credentials.username is not None:
            pair = f"{credentials.username}:{credentials.password or ''}"
            self._basic = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._header = f"Bearer {credentials.token}" if credentials.token is not None else None
        self._lock = threading.Lock()

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        for _ in range(TOKENS_TRIED_MAX):
            header = self._header
            if header is not None:
                request.headers["Authorization"] = header
            response = yield request
            if response.status_code != 401 or response.url.host != self._host:
                return
            if self._answer(response.headers.get("www-authenticate", ""), refused=header) is None:
                return

    def _answer(self, challenge: str, *, refused: str | None) -> str | None:
        """The header that answers the challenge, or None when we have nothing better than what was refused."""
        with self._lock:
            if self._header != refused:  # another connection has just renewed it
                return self._header
            kind, _, rest = challenge.partition(" ")
            fields = dict(_CHALLENGE.findall(rest))
            if kind.lower() == "basic":
                self._header = self._basic
            elif kind.lower() == "bearer" and "realm" in fields:
                self._header = self._ask_for_token(fields)
            else:
                return None
            return self._header if self._header != refused else None

    def _ask_for_token(self, fields: dict[str, str]) -> str:
        realm = fields["realm"]
        if self._secure and not realm.startswith("https:"):
            raise FetchError(f"{self._source.registry} asks for credentials to be sent without TLS; refused")
        scope = fields.get("scope") or f"repository:{self._source.repository}:pull"
        parameters = {"scope": scope, **({"service": fields["service"]} if "service" in fields else {})}
        headers = {"Authorization": self._basic} if self._basic is not None else {}
        try:
            with self._client.stream(
                "GET", realm, params=parameters, headers=headers, follow_redirects=False
            ) as response:
                raise_for_status(response, f"a token for {self._source.repository}")
                content = b""
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > MANIFEST_BYTES_MAX:
                        raise FetchError(f"The token service of {self._source.registry} sends more than any token has")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise explain_transport(error, realm) from error
        try:
            answer = json.loads(content)
            token = answer.get("token") or answer.get("access_token")
        except (*JSON_ERRORS, AttributeError) as error:
            raise FetchError(f"The token service of {self._source.registry} does not answer with a token") from error
        if not isinstance(token, str) or not token:
            raise FetchError(f"The token service of {self._source.registry} does not answer with a token")
        return f"Bearer {token}"


def _media_type(manifest: dict[str, Any]) -> str:
    return str(manifest.get("mediaType", ""))


def _choose_manifest(index: dict[str, Any], name: str) -> str:
    """The only manifest of an index, or the one for this machine."""
    listed = index.get("manifests")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    machine = _ARCHITECTURES.get(platform.machine(), platform.machine())
    platforms = [entry.get("platform") for entry in entries]
    fitting = [
        entry
        for entry, found in zip(entries, platforms, strict=True)
        if isinstance(found, dict) and found.get("architecture") == machine
    ]
    chosen = entries if len(entries) == 1 else fitting
    digest = chosen[0].get("digest") if chosen else None
    if not isinstance(digest, str) or not is_digest(digest):
        raise FetchError(f"{name} is an index without a manifest for {machine}")
    return digest


def _file(layer: Any, index: int, name: str) -> RemoteFile | None:
    """The layer as a file or archive; None for one that holds neither."""
    if not isinstance(layer, dict):
        raise FetchError(f"Layer {index} of {name} is not an object")
    digest, size = layer.get("digest"), layer.get("size")
    if not isinstance(digest, str) or not is_digest(digest) or not isinstance(size, int) or size < 0:
        raise FetchError(f"Layer {index} of {name} has no sha256 digest or no size")
    annotations = layer.get("annotations") or {}
    if not isinstance(annotations, dict):
        raise FetchError(f"Layer {index} of {name} has annotations that are no object")
    media_type = str(layer.get("mediaType", ""))
    title = annotations.get(TITLE_ANNOTATION)
    path = title if title is not None else annotations.get(MODELPACK_ANNOTATION)
    if path is not None and not isinstance(path, str):
        raise FetchError(f"Layer {index} of {name} has a name that is no text")
    archive = (
        annotations.get(UNPACK_ANNOTATION) == "true"
        or (path is not None and path.endswith(ARCHIVE_SUFFIXES))
        # A titled layer is the file itself, whatever its media type: clients push plain files as "…layer.v1.tar".
        or (title is None and ".tar" in media_type)
    )
    if archive and "zstd" in media_type:
        raise FetchError(f"Layer {index} of {name} is compressed with zstd; push it with gzip or uncompressed")
    if not archive and path is None:
        return None
    return RemoteFile(
        path=f"layer-{index:04d}" if archive else str(path).removeprefix("./"),
        key=quote(digest, safe=":"),
        size=size,
        version=digest,
        checksum=Checksum.of_digest(digest),
        archive=archive,
    )
