"""Debian root file systems: one for the node, one for our own images. Made with debootstrap, slimmed, cached."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import pins
from e2e.cluster.content import Cache, digest_of
from e2e.cluster.errors import PrivilegeError
from e2e.cluster.machine import Machine
from e2e.cluster.progress import Progress, run

USER_ID = 65532
_EVERYWHERE = (
    "var/cache/apt/*.bin", "var/cache/apt/archives/*.deb", "var/lib/apt/lists/*", "var/log/*", "var/cache/debconf/*-old",
    "usr/share/doc/*", "usr/share/man/*", "usr/share/info/*", "usr/share/lintian", "usr/share/locale/*",
    "var/lib/dpkg/*-old", "dev/*",
)  # fmt: skip
# What kind's base image disables in systemd, and Debian's sysctl defaults: a privileged node would write those to the
# kernel that it shares with this machine.
_NODE = (
    "usr/lib/sysctl.d/*.conf",
    "usr/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
    "usr/lib/systemd/system/multi-user.target.wants/*",
    "etc/systemd/system/*.wants/*",
    "usr/lib/systemd/system/local-fs.target.wants/*",
    "usr/lib/systemd/system/sockets.target.wants/*udev*",
    "usr/lib/systemd/system/sockets.target.wants/*initctl*",
    "usr/lib/systemd/system/basic.target.wants/*",
)
# A server image needs no package manager and no perl; dpkg's list of packages stays, scanners read it.
_APPLICATION = (
    "usr/share/bash-completion", "usr/share/common-licenses", "usr/share/perl*", "usr/lib/*/perl-base", "usr/bin/perl*",
    "usr/bin/apt*", "usr/lib/apt", "usr/lib/*/libapt-*", "usr/lib/python3/dist-packages/*", "usr/share/python-wheels",
    "usr/lib/python3.11/ensurepip", "usr/lib/python3.11/pydoc_data", "usr/lib/python3.11/__pycache__/pydoc*",
    "usr/lib/python3.11/lib2to3", "usr/lib/*/gconv/*", "usr/lib/udev", "usr/share/zoneinfo/right",
    "usr/share/zoneinfo/posix", "var/lib/dpkg/info/*",
)  # fmt: skip


@dataclass(frozen=True)
class RootFileSystem:
    """A recipe: packages, what is deleted afterwards, and the time it usually takes."""

    name: str
    packages: tuple[str, ...]
    delete: tuple[str, ...]
    usual_s: int
    account: bool = False

    def key(self, mirror: str) -> str:
        """The cache key."""
        return digest_of(self.name, pins.DEBIAN_SUITE, mirror, self.packages, self.delete, self.account)


NODE = RootFileSystem(name="node", packages=pins.NODE_PACKAGES, delete=_EVERYWHERE + _NODE, usual_s=60)
APPLICATION = RootFileSystem(
    name="application", packages=pins.APPLICATION_PACKAGES, delete=_EVERYWHERE + _APPLICATION, usual_s=50, account=True
)


def build(
    cache: Cache, recipe: RootFileSystem, *, mirror: str, machine: Machine, progress: Progress, logs: Path
) -> Path:
    """The root directory of a recipe. Owners and modes are those of the image."""
    key = recipe.key(mirror)
    if cache.has("root", key):
        return cache.entry("root", key, lambda _: None) / "root"
    if not machine.root:
        raise PrivilegeError("debootstrap needs root to set owners and to run maintainer scripts; run as root")

    def bootstrap(target: Path) -> None:
        root = target / "root"
        log = logs / f"debootstrap-{recipe.name}.log"
        packages = ",".join(recipe.packages)
        command: list[str | Path] = [
            "debootstrap",
            "--variant=minbase",
            f"--include={packages}",
            pins.DEBIAN_SUITE,
            root,
            *([mirror] if mirror else []),
        ]
        run(command, log=log)
        slim(root, recipe.delete)
        if recipe.account:
            add_account(root)

    with progress.step(f"Bootstrapping Debian for the {recipe.name} image", usual_s=recipe.usual_s):
        return cache.entry("root", key, bootstrap) / "root"


def slim(root: Path, patterns: Sequence[str]) -> None:
    """Delete what matches; a pattern that matches nothing is fine."""
    for pattern in patterns:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def add_account(root: Path) -> None:
    """The unprivileged user of our images, so that a name exists for its number."""
    with (root / "etc/passwd").open("a") as passwd:
        passwd.write(f"pratique:x:{USER_ID}:{USER_ID}:pratique:/tmp:/usr/sbin/nologin\n")
    with (root / "etc/group").open("a") as group:
        group.write(f"pratique:x:{USER_ID}:\n")


def resolve(root: Path, path: str, *, links: int = 20) -> Path:
    """The file behind `path` inside a root file system; absolute links stay inside it."""
    current = Path("/")
    parts = list(Path(path).parts[1:])
    while parts:
        if links < 0:
            raise OSError(f"too many links: {path}")
        part = parts.pop(0)
        candidate = root / current.relative_to("/") / part
        if part == "..":
            current = current.parent
        elif candidate.is_symlink():
            links -= 1
            target = candidate.readlink()
            if target.is_absolute():
                current = Path("/")
                parts = [*target.parts[1:], *parts]
            else:
                parts = [*target.parts, *parts]
        else:
            current /= part
    return root / current.relative_to("/")
