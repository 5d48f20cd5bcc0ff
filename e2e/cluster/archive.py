"""Image archives without a daemon: deterministic layers, docker archives, OCI archives (whole or thin).

A layer is the sorted tar of its sources, every time stamp 0, owners either kept or 0. The same input gives the same
bytes, hence the same digest. A *thin* OCI archive leaves out blobs that the receiver already has.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import json
import os
import subprocess
import tarfile
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol

EPOCH = "1970-01-01T00:00:00Z"
MEDIA_TYPES = {
    "none": "application/vnd.oci.image.layer.v1.tar",
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
BLOCK = 1 << 20


@dataclass(frozen=True)
class Source:
    """A directory whose content appears at `at` (no leading slash) in a layer.

    `exclude` holds shell patterns on the path in the layer; a matching directory is left out with its content.
    """

    root: Path
    at: str = ""
    keep_owner: bool = False
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layer:
    """A written layer: `digest` names the stored bytes, `diff_id` the tar inside."""

    file: Path
    digest: str
    diff_id: str
    size: int
    media_type: str

    def save(self, path: Path) -> None:
        """Remember everything but where the file is."""
        path.write_text(json.dumps({k: v for k, v in asdict(self).items() if k != "file"}))

    @classmethod
    def load(cls, path: Path, *, file: Path) -> Layer:
        """Read what `save` wrote."""
        return cls(file=file, **json.loads(path.read_text()))


@dataclass(frozen=True)
class Image:
    """An image: names, layers from the bottom up, and the `config` part of its configuration."""

    references: tuple[str, ...]
    layers: tuple[Layer, ...]
    config: Mapping[str, Any]

    def configuration(self) -> bytes:
        """The configuration blob."""
        return _canonical(
            {
                "architecture": "amd64",
                "os": "linux",
                "created": EPOCH,
                "config": dict(self.config),
                "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in self.layers]},
                "history": [{"created": EPOCH, "created_by": "pratique e2e.cluster"} for _ in self.layers],
            }
        )

    def manifest(self) -> bytes:
        """The OCI manifest blob."""
        configuration = self.configuration()
        layers = [{"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size} for layer in self.layers]
        config = {"mediaType": CONFIG, "digest": digest(configuration), "size": len(configuration)}
        return _canonical({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers})


def digest(blob: bytes) -> str:
    """The name of a blob."""
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class _Sink(Protocol):
    def write(self, data: bytes, /) -> object: ...


class _Hashing:
    """Counts and hashes what passes through."""

    def __init__(self, target: _Sink) -> None:
        self._target = target
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes, /) -> int:
        self._hash.update(data)
        self.size += len(data)
        self._target.write(data)
        return len(data)

    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def write_layer(file: Path, sources: Sequence[Source], *, compression: str) -> Layer:
    """Write a layer. Of two sources with the same path the later wins; a directory keeps the first one's mode."""
    with file.open("wb") as raw:
        stored = _Hashing(raw)
        writer, finish = _compressor(stored, compression)
        plain = _Hashing(writer)
        with tarfile.open(fileobj=plain, mode="w|", format=tarfile.GNU_FORMAT, bufsize=BLOCK) as tar:  # type: ignore[call-overload]
            for name, (path, keep_owner) in sorted(_members(sources).items()):
                _add(tar, name, path, keep_owner=keep_owner)
        finish()
    return Layer(
        file=file, digest=stored.digest(), diff_id=plain.digest(), size=stored.size, media_type=MEDIA_TYPES[compression]
    )


def _compressor(target: _Hashing, compression: str) -> tuple[_Sink, Callable[[], None]]:
    if compression == "none":
        return target, lambda: None
    if compression == "gzip":
        deflate = zlib.compressobj(level=1, wbits=31)
        return _Gzip(deflate, target), lambda: (target.write(deflate.flush()), None)[1]
    return _zstd(target)


class _Gzip:
    def __init__(self, deflate: Any, target: _Sink) -> None:
        self._deflate = deflate
        self._target = target

    def write(self, data: bytes, /) -> None:
        self._target.write(self._deflate.compress(data))


def _zstd(target: _Hashing) -> tuple[_Sink, Callable[[], None]]:
    # Threads do not change zstd's output as long as their number is fixed.
    process = subprocess.Popen(["zstd", "-1", "-T2", "-q", "-c"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    source: IO[bytes] = process.stdout

    def pump() -> None:
        while block := source.read(BLOCK):
            target.write(block)

    thread = threading.Thread(target=pump)
    thread.start()
    stdin = process.stdin

    def finish() -> None:
        stdin.close()
        thread.join()
        if process.wait() != 0:
            raise OSError(f"zstd exited with {process.returncode}")

    return stdin, finish


def _members(sources: Sequence[Source]) -> dict[str, tuple[Path, bool]]:
    members: dict[str, tuple[Path, bool]] = {}
    for source in sources:
        for name, path in _walk(source):
            known = members.get(name)
            both_directories = known is not None and _is_directory(known[0]) and _is_directory(path)
            if not both_directories:
                members[name] = (path, source.keep_owner)
    return members


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _walk(source: Source) -> Iterable[tuple[str, Path]]:
    prefix = f"{source.at}/" if source.at else ""
    pending = [(source.root, prefix)]
    while pending:
        folder, base = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                name = base + entry.name
                if any(fnmatch.fnmatchcase(name, pattern) for pattern in source.exclude):
                    continue
                yield name, Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    pending.append((Path(entry.path), f"{name}/"))


def _add(tar: tarfile.TarFile, name: str, path: Path, *, keep_owner: bool) -> None:
    status = path.lstat()
    member = tarfile.TarInfo(name)
    member.mode = status.st_mode & 0o7777
    member.mtime = 0
    if keep_owner:
        member.uid, member.gid = status.st_uid, status.st_gid
    if path.is_symlink():
        member.type = tarfile.SYMTYPE
        member.linkname = str(path.readlink())
        tar.addfile(member)
    elif path.is_dir():
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
    elif path.is_file():
        member.size = status.st_size
        with path.open("rb") as content:
            tar.addfile(member, content)
    # Sockets, pipes and devices belong to a running system, not to an image.


def write_docker_archive(target: Path, images: Sequence[Image]) -> None:
    """A `docker save` archive. `repositories` comes first: kind reads the names of every image from it, but only the
    names of the first image from manifest.json."""
    repositories: dict[str, dict[str, str]] = {}
    entries: list[dict[str, object]] = []
    blobs: dict[str, bytes | Path] = {}
    for image in images:
        configuration = image.configuration()
        config_name = f"{digest(configuration).removeprefix('sha256:')}.json"
        blobs[config_name] = configuration
        names = []
        for layer in image.layers:
            names.append(f"{layer.digest.removeprefix('sha256:')}.tar")
            blobs[names[-1]] = layer.file
        entries.append({"Config": config_name, "RepoTags": list(image.references), "Layers": names})
        for reference in image.references:
            repository, _, tag = reference.rpartition(":")
            repositories.setdefault(repository, {})[tag] = image.layers[-1].diff_id.removeprefix("sha256:")
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        _add_blob(tar, "repositories", _canonical(repositories))
        _add_blob(tar, "manifest.json", _canonical(entries))
        for name, blob in blobs.items():
            _add_blob(tar, name, blob)


def blobs_of(images: Sequence[Image]) -> dict[str, bytes | Path]:
    """Every blob of the images by digest, in the order in which a receiver needs them."""
    blobs: dict[str, bytes | Path] = {}
    for image in images:
        blobs |= {layer.digest: layer.file for layer in image.layers}
        blobs |= {digest(blob): blob for blob in (image.configuration(), image.manifest())}
    return blobs


def write_oci_archive(target: IO[bytes], images: Sequence[Image], *, without: Collection[str] = ()) -> int:
    """Stream an OCI archive; blobs named in `without` are left out. Returns the number of blob bytes written."""
    written = 0
    manifests = []
    for image in images:
        manifest = image.manifest()
        for reference in image.references:
            # containerd takes the whole name from the first annotation; the second is what the OCI layout defines.
            names = {
                "io.containerd.image.name": reference,
                "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
            }
            descriptor = {"mediaType": MANIFEST, "digest": digest(manifest), "size": len(manifest)}
            manifests.append({**descriptor, "annotations": names})
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.GNU_FORMAT, bufsize=BLOCK) as tar:
        _add_blob(tar, "oci-layout", _canonical({"imageLayoutVersion": "1.0.0"}))
        _add_blob(tar, "index.json", _canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}))
        for name, blob in blobs_of(images).items():
            if name not in without:
                written += _add_blob(tar, f"blobs/sha256/{name.removeprefix('sha256:')}", blob)
    return written


def _add_blob(tar: tarfile.TarFile, name: str, blob: bytes | Path) -> int:
    member = tarfile.TarInfo(name)
    member.mode = 0o644
    if isinstance(blob, bytes):
        member.size = len(blob)
        tar.addfile(member, io.BytesIO(blob))
    else:
        member.size = blob.stat().st_size
        with blob.open("rb") as content:
            tar.addfile(member, content)
    return member.size
