"""Debian packages on the machine: some installed, the container engine only unpacked into the cache."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster import pins
from e2e.cluster.content import Cache, digest_of
from e2e.cluster.errors import CommandError, PrivilegeError
from e2e.cluster.machine import Machine
from e2e.cluster.progress import Progress, run

APT = ("apt-get", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")


def missing_packages() -> list[str]:
    """Packages of which the file we need is not there. The file, not dpkg: another distribution may have it too."""
    return [name for name, file in pins.INSTALLED_PACKAGES.items() if not Path(file).exists()]


def install_missing(machine: Machine, *, progress: Progress, logs: Path) -> None:
    """Install what is missing when we may, otherwise say which command does it."""
    missing = missing_packages()
    if not missing:
        return
    command = [*APT, "install", "--yes", "--no-install-recommends", *missing]
    if not machine.root:
        raise PrivilegeError(f"some packages are missing; run: sudo {' '.join(command)}")
    log = logs / "apt.log"
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    with progress.step(f"Installing {', '.join(missing)}", usual_s=15):
        try:
            run(command, log=log, env=environment)
        except CommandError:
            # Images of Debian come without package lists; a stale list fails in the same way.
            run([*APT, "update"], log=log, env=environment)
            run(command, log=log, env=environment)


def engine_root(cache: Cache, machine: Machine, *, progress: Progress, logs: Path) -> Path:
    """The unpacked container engine: a directory with usr/bin and usr/sbin."""
    if not machine.root:
        raise PrivilegeError("a private container engine needs root; run as root, or start docker yourself")
    key = digest_of("debs", pins.UNPACKED_PACKAGES, pins.DEBIAN_SUITE)
    if cache.has("engine", key):
        return cache.path("engine", key)

    def build(target: Path) -> None:
        log = logs / "apt.log"
        downloads = target / "debs"
        downloads.mkdir()
        try:
            run([*APT, "download", *pins.UNPACKED_PACKAGES], log=log, cwd=downloads)
        except CommandError:
            run([*APT, "update"], log=log)
            run([*APT, "download", *pins.UNPACKED_PACKAGES], log=log, cwd=downloads)
        for package in sorted(downloads.glob("*.deb")):
            run(["dpkg", "-x", package, target], log=log)
            package.unlink()
        downloads.rmdir()

    with progress.step("Unpacking Debian's container engine", usual_s=10):
        return cache.entry("engine", key, build)
