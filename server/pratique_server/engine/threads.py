"""How many threads compute, and how they wait. Must be in the environment before torch is imported, so it is
decided by the process that starts the engine. Host facts: they go into the manifest's runtime section, never into
the fingerprint.

The API process needs a core of its own, or streaming stalls while a step computes. Waiting threads sleep by
default: spinning is quicker on a quiet machine and many times slower when another process or a CPU quota takes a
core.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

THREADS_VARIABLE: Final = "PRATIQUE_ENGINE_THREADS"
WAIT_POLICY_VARIABLE: Final = "PRATIQUE_ENGINE_WAIT_POLICY"
_WAIT_POLICIES: Final = ("PASSIVE", "ACTIVE")


def available_cores(*, cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores this process may use: its affinity, and the container's CPU quota when there is one (cgroup v2 or v1)."""
    cores = len(os.sched_getaffinity(0))
    quota = _cpu_quota(cgroup_root)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def _cpu_quota(root: Path) -> float | None:
    try:
        if (root / "cpu.max").exists():
            limit, period = (root / "cpu.max").read_text().split()
            return None if limit == "max" else int(limit) / int(period)
        limit_us = int((root / "cpu/cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return limit_us / period_us if limit_us > 0 else None


def thread_environment(environment: Mapping[str, str], *, cores: int) -> dict[str, str]:
    """Variables to set for the engine process; what the person running it set is kept. Raises ``ValueError``."""
    threads = int(environment.get(THREADS_VARIABLE) or max(1, cores - 1))
    policy = (environment.get(WAIT_POLICY_VARIABLE) or "PASSIVE").upper()
    if threads < 1:
        raise ValueError(f"{THREADS_VARIABLE} is {threads}; it must be at least 1")
    if policy not in _WAIT_POLICIES:
        raise ValueError(f"{WAIT_POLICY_VARIABLE} is {policy}; it must be one of {', '.join(_WAIT_POLICIES)}")
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": policy,
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",
    }


def applied_thread_settings() -> dict[str, str]:
    """What this process was started with, for the runtime section."""
    return {"waitPolicy": os.environ.get("OMP_WAIT_POLICY", "library default")}
