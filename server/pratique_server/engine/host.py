"""What this host computes with, for whoever compares two hosts' outputs: kernels and hardware. Never part of a fingerprint."""

import os
import re
from pathlib import Path
from typing import Any, Final

import torch

from pratique_server.engine.threads import available_cores

_NODES: Final = Path("/sys/devices/system/node")


def topology_facts() -> dict[str, Any]:
    """Hardware as this process sees it. What the kernel does not say is left out."""
    found = {
        "processor": _search(r"model name\s*:\s*(.+)", _read("/proc/cpuinfo")),
        "cores": available_cores(),
        "coresOfHost": os.cpu_count(),
        "numaNodes": len(list(_NODES.glob("node[0-9]*"))),
        "memoryBytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "accelerators": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }
    return {name: value for name, value in found.items() if value}


def kernel_facts() -> dict[str, str]:
    """Which numeric kernels torch was built with and may use here, for whoever compares two hosts' outputs."""
    built = torch.__config__.show()
    found = {
        "cpuCapability": torch.backends.cpu.get_cpu_capability(),
        "blas": _search(r"BLAS_INFO=(\w+)", built),
        "mkl": _search(r"Math Kernel Library Version (\S+)", built),
        "oneDnn": _search(r"MKL-DNN v(\S+)", built) if torch.backends.mkldnn.is_available() else "",  # type: ignore[no-untyped-call]
        "openMp": _search(r"OpenMP (\d+)", built),
        "cuda": str(torch.version.cuda or ""),
        "cuDnn": str(torch.backends.cudnn.version() or "") if torch.cuda.is_available() else "",  # type: ignore[no-untyped-call]
    }
    return {name: value for name, value in found.items() if value}


def _search(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
