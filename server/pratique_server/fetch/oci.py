"""A manifest in an OCI registry, by digest: an artifact whose layers are files, or an image whose layers are tar archives.

The chain of digests begins in the URI: it names the manifest, the manifest names every layer by sha256 and size, and a layer is either
a file itself (its name is an annotation) or an archive.
"""

import json
import platform
from typing import Any, Final
from urllib.parse import quote

import httpx

from pratique_contract.canonical import digest_bytes, is_digest
from pratique_server.fetch.errors import CorruptError, FetchError
from pratique_server.fetch.hashing import Checksum
from pratique_server.fetch.registry import INDEX_TYPES, Repository
from pratique_server.fetch.remote import Listing, RemoteFile, Request
from pratique_server.fetch.secrets import Credentials
from pratique_server.fetch.selection import Wanted, require_usable, select
from pratique_server.fetch.uris import OciSource

TITLE_ANNOTATION: Final = "org.opencontainers.image.title"
UNPACK_ANNOTATION: Final = "io.deis.oras.content.unpack"
MODELPACK_ANNOTATION: Final = "org.cncf.model.filepath"
ARCHIVE_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.zst")
LAYERS_MAX: Final = 1024
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class OciRemote:
    """Lists the layers of one manifest."""

    def __init__(self, source: OciSource, wanted: Wanted, *, client: httpx.Client, credentials: Credentials) -> None:
        self._source = source
        self._wanted = wanted
        self._repository = Repository(source.registry, source.repository, client=client, credentials=credentials)

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
        return Request(url=self._repository.blob_url(file.key), auth=self._repository.auth)

    def check(self, file: RemoteFile, response: httpx.Response) -> None:
        """The layer's own digest says it all."""

    def _name(self) -> str:
        return f"oci://{self._source.registry}/{self._source.repository}@{self._source.digest}"

    def _read_manifest(self, digest: str) -> dict[str, Any]:
        content = self._repository.read_manifest(digest)
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
