"""The conditions under which something was measured: without them a number says nothing about another machine or another hour."""

import os
import platform
import ssl
import time
from pathlib import Path
from typing import Any


def describe_host() -> dict[str, Any]:
    """What the host is and how busy it is now."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "openssl": ssl.OPENSSL_VERSION,
        "loadAverage": round(os.getloadavg()[0], 2),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def cpu_seconds() -> tuple[float, float]:
    """Seconds of processor time used by the whole host and by this process, so that what others used can be told."""
    fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK"), time.process_time()


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
