"""What this machine can and cannot do, read from /proc. The parsers are pure; each workaround elsewhere asks here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CAP_SYS_RESOURCE = 24


def has_capability(status: str, bit: int) -> bool:
    """Whether the bounding set in the text of /proc/<pid>/status contains a capability."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "CapBnd":
            return bool(int(value.strip(), 16) >> bit & 1)
    return True  # not Linux as we know it: assume nothing is missing


def cgroup_version(mounts: str) -> int:
    """1 or 2, from the text of /proc/mounts: 2 only when /sys/fs/cgroup itself is the unified hierarchy."""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[1] == "/sys/fs/cgroup" and fields[2] == "cgroup2":
            return 2
    return 1


@dataclass(frozen=True)
class Machine:
    """The facts that decide which workarounds are used."""

    root: bool
    sys_resource: bool
    cgroup: int


def observe() -> Machine:
    """Read the facts of the machine this runs on."""
    return Machine(
        root=os.geteuid() == 0,
        sys_resource=has_capability(Path("/proc/self/status").read_text(), CAP_SYS_RESOURCE),
        cgroup=cgroup_version(Path("/proc/mounts").read_text()),
    )
