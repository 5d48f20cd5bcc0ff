"""The cache: directories named by what went into them.

    <root>/<kind>/<key>/...      one entry; it exists only when it is complete

An entry is written under a temporary name and renamed, so a killed run leaves nothing that a later one believes.
The key is a digest of every input; an entry is therefore never updated, only replaced by one with another key.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from e2e.cluster.errors import ClusterError

KEY_LENGTH = 20
TEMPORARY_PREFIX = ".partial-"
LOCK_WAIT_S = 3600.0


def digest_of(*inputs: object) -> str:
    """A short key for JSON-able inputs: equal inputs give equal keys in every process."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def digest_of_files(root: Path, paths: list[Path]) -> str:
    """A key for files: names relative to `root`, whether they are executable, and their bytes."""
    whole = hashlib.sha256()
    for path in sorted(paths):
        executable = bool(path.stat().st_mode & 0o100)
        bytes_digest = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{path.relative_to(root).as_posix()}\0{executable}\0{bytes_digest}\n".encode())
    return whole.hexdigest()[:KEY_LENGTH]


def write_atomically(path: Path, content: str) -> None:
    """Write a small file so that a reader sees the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    temporary.write_text(content)
    temporary.replace(path)


def mounts_below(mounts: str, path: Path) -> list[str]:
    """Mount points inside `path`, deepest first, from the text of /proc/mounts."""
    points = [line.split()[1] for line in mounts.splitlines() if len(line.split()) > 1]
    return sorted((point for point in points if Path(point).is_relative_to(path)), key=len, reverse=True)


def remove_tree(path: Path) -> None:
    """Delete a directory, unless something is mounted in it that cannot be unmounted: a debootstrap that was killed
    leaves this machine's /proc and /sys in there."""
    for point in mounts_below(Path("/proc/self/mounts").read_text(), path):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
    if not mounts_below(Path("/proc/self/mounts").read_text(), path):
        shutil.rmtree(path, ignore_errors=True)


class Cache:
    """Entries below one root directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def path(self, kind: str, key: str) -> Path:
        """Where an entry is, or would be."""
        return self.root / kind / key

    def has(self, kind: str, key: str) -> bool:
        """Whether a complete entry exists."""
        return self.path(kind, key).is_dir()

    def entry(self, kind: str, key: str, build: Callable[[Path], None]) -> Path:
        """The entry; `build` fills an empty directory when there is none."""
        final = self.path(kind, key)
        if final.is_dir():
            os.utime(final)
            return final
        final.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=final.parent))
        try:
            build(partial)
            partial.chmod(0o755)
            partial.rename(final)
        finally:
            remove_tree(partial)
        return final

    def prune(self, kind: str, *, keep: int) -> list[str]:
        """Delete all but the most recently used entries of a kind, and what killed runs left. Returns the keys."""
        folder = self.root / kind
        if not folder.is_dir():
            return []
        partial = [path for path in folder.iterdir() if path.name.startswith(TEMPORARY_PREFIX)]
        whole = [path for path in folder.iterdir() if not path.name.startswith(TEMPORARY_PREFIX)]
        whole.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in partial + whole[keep:]:
            remove_tree(path)
        return [path.name for path in whole[keep:]]

    @contextlib.contextmanager
    def locked(self, *, wait_s: float = LOCK_WAIT_S, say: Callable[[str], None] = print) -> Iterator[None]:
        """Only one process at a time changes the cache or the cluster."""
        with (self.root / "lock").open("a+") as handle:
            deadline = time.monotonic() + wait_s
            announced = False
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ClusterError(f"another run still holds {handle.name}") from None
                    if not announced:
                        say(f"Waiting for another run (lock {handle.name})")
                        announced = True
                    time.sleep(0.5)
            yield
