"""Where the model, its adapters and the tokenizer lie and how a pod gets at them. Pure: a spec in, volumes and mounts out.

``pvc://`` and ``file://`` are mounted in place. Everything else is fetched into the cache volume by the first container of the pod;
the serving container then sees each fetched folder read-only, and nothing else of the cache.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from pratique_contract import constants
from pratique_contract.sources import cache_folder, is_fetched, scheme_of
from pratique_operator import names
from pratique_operator.api.source_types import CacheSpec
from pratique_operator.api.types import InferenceServiceSpec
from pratique_operator.errors import InvalidSpecError

Manifest = dict[str, Any]

# What a cache nobody described may take of a node's disk. A pod that needs more is evicted and says DiskFull; without a limit it
# would fill the disk and take its neighbours along.
CACHE_SIZE_LIMIT: Final = "20Gi"

_FILE_SOURCES_HINT: Final = (
    "which this operator does not allow; use a claim, or install the chart with allowFileSources=true"
)


@dataclass(frozen=True)
class Source:
    """One declared source: ``field`` is where the spec names it, ``path`` where the pod finds its files."""

    field: str
    uri: str
    revision: str | None
    volume: str
    path: str

    @property
    def fetched(self) -> bool:
        return is_fetched(self.uri)


@dataclass(frozen=True)
class Mount:
    """A volume and where the container sees it; ``volume`` None when the mount shares another one's volume."""

    volume: Manifest | None
    mount: Manifest


def declared_sources(spec: InferenceServiceSpec) -> tuple[Source, ...]:
    """The model, its adapters in their order, the tokenizer."""
    model = spec.model
    found = [_source("spec.model", model.uri, model.revision, names.VOLUME_MODEL)]
    for adapter in model.adapters or ():
        field = f"spec.model.adapters[{adapter.name}]"
        found.append(_source(field, adapter.uri, adapter.revision, names.adapter_volume(adapter.name)))
    if spec.tokenizer is not None:
        tokenizer = spec.tokenizer
        found.append(_source("spec.tokenizer", tokenizer.uri, tokenizer.revision, names.VOLUME_TOKENIZER))
    return tuple(found)


def _source(field: str, uri: str, revision: str | None, volume: str) -> Source:
    path = cache_folder(uri, revision) if is_fetched(uri) else f"{constants.MODEL_MOUNT}/{volume}"
    return Source(f"{field}.uri", uri, revision, volume, path)


def pinned_revision(uri: str, revision: str | None) -> str | None:
    """The immutable revision the fetch holds the files against: a commit, a digest, or that of a prefix's listing; an artifact's is in
    its address. None for a prefix that is listed anew at every start, and for mounted sources, where ``revision`` is a note."""
    if not is_fetched(uri):
        return None
    digest = uri.rpartition("@")[2] if scheme_of(uri) == "oci" else ""
    return revision or digest or None


def build_mounts(sources: tuple[Source, ...], *, allow_file_sources: bool) -> list[Mount]:
    """What the serving container mounts, all read-only; one mount for a fetched source that is named twice."""
    found: dict[str, Mount] = {}
    for source in sources:
        if source.path not in found:
            found[source.path] = _build_mount(source, allow_file_sources=allow_file_sources)
    return list(found.values())


def _build_mount(source: Source, *, allow_file_sources: bool) -> Mount:
    mount: Manifest = {"name": source.volume, "mountPath": source.path, "readOnly": True}
    if source.fetched:
        # A mount of its own, not the whole cache: a mounted source beside it would need a folder made in a read-only volume.
        return Mount(None, {**mount, "name": names.VOLUME_CACHE, "subPath": PurePosixPath(source.path).name})
    scheme, rest = scheme_of(source.uri), source.uri.partition("://")[2]
    if scheme == "pvc":
        claim, _, folder = rest.partition("/")
        if folder.strip("/"):
            mount["subPath"] = folder.strip("/")
        return Mount(_volume(source.volume, persistentVolumeClaim={"claimName": claim, "readOnly": True}), mount)
    if scheme == "file":
        if not allow_file_sources:
            raise InvalidSpecError(source.field, f"file:// reads a folder of the node, {_FILE_SOURCES_HINT}")
        # Directory: a missing folder keeps the pod from starting instead of becoming an empty one.
        return Mount(_volume(source.volume, hostPath={"path": rest.rstrip("/"), "type": "Directory"}), mount)
    raise InvalidSpecError(source.field, f"{scheme}:// is no source this operator knows")


def build_cache_volume(cache: CacheSpec | None, *, allow_file_sources: bool) -> Manifest:
    """The volume fetched files are kept on; without a word about it, a bounded piece of the node's disk for each pod."""
    if cache is not None and cache.claim_name is not None:
        return _volume(names.VOLUME_CACHE, persistentVolumeClaim={"claimName": cache.claim_name})
    if cache is not None and cache.host_path is not None:
        if not allow_file_sources:
            raise InvalidSpecError("spec.download.cache.hostPath", f"it is a folder of the node, {_FILE_SOURCES_HINT}")
        return _volume(names.VOLUME_CACHE, hostPath={"path": cache.host_path, "type": "Directory"})
    return _volume(names.VOLUME_CACHE, emptyDir={"sizeLimit": cache_size_limit(cache)})


def cache_size_limit(cache: CacheSpec | None) -> str | None:
    """What the kubelet lets the cache grow to; None when the volume itself is the limit."""
    if cache is not None and cache.empty_dir is None:
        return None
    given = None if cache is None or cache.empty_dir is None else cache.empty_dir.size_limit
    return given or CACHE_SIZE_LIMIT


def _volume(name: str, **source: Any) -> Manifest:
    return {"name": name, **source}
