"""Say what this engine is: its build, the libraries that change numbers, the kind of device, what it loaded.

``engine_build`` is a digest of our own source, so a host and an image made from the same tree agree and any edit
shows.
"""

import functools
import hashlib
import os
import platform
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

from pratique_contract import ServingSpec
from pratique_server.engine.flags import normalize_flags, read_number_format
from pratique_server.engine.host import kernel_facts, topology_facts
from pratique_server.engine.loader import LoadedModel
from pratique_server.engine.protocol import EngineIdentity
from pratique_server.engine.threads import applied_thread_settings

# Libraries whose change can change numbers or text.
LIBRARIES: Final = ("torch", "transformers", "tokenizers", "safetensors", "jinja2")
# Parts of the server that never run in the process that serves (import-linter proves it): a fix in one of them
# must not make every release another one.
_BESIDE_SERVING: Final = ("fetch", "review")
_SOURCE_PACKAGES: Final = ("pratique_contract", "pratique_server")


@functools.cache
def engine_build() -> str:
    """``sha256:`` over the path and bytes of every Python file of the contract and of the server's serving parts, in sorted order."""
    hasher = hashlib.sha256()
    for package in _SOURCE_PACKAGES:
        root = _package_root(package)
        for file in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
            if package == "pratique_server" and file.relative_to(root).parts[0] in _BESIDE_SERVING:
                continue
            name = f"{package}/{file.relative_to(root).as_posix()}".encode()
            content = file.read_bytes()
            hasher.update(b"%d %d " % (len(name), len(content)) + name + content)
    return f"sha256:{hasher.hexdigest()}"


def _package_root(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def library_versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in LIBRARIES}


def choose_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_class(device: str) -> str:
    """The kind of device, as far as it decides how numbers are rounded: ``cpu-avx512``, ``cuda-sm90``."""
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return f"cuda-sm{major}{minor}"
    return f"cpu-{torch.backends.cpu.get_cpu_capability().lower()}"


def make_identity(spec: ServingSpec, loaded: LoadedModel, *, device: str, facts: dict[str, Any]) -> EngineIdentity:
    """Put together what the gate compares. ``facts`` are the engine's own runtime facts; host facts are added here."""
    return EngineIdentity(
        engine_name=spec.engine.name,
        engine_version=metadata.version("pratique"),
        engine_build=engine_build(),
        libraries=library_versions(),
        architecture=loaded.architecture,
        model_files=loaded.files,
        dtype=loaded.dtype,
        quantization_method=loaded.quantization.method,
        quantization_config=loaded.quantization.config,
        quantized_tensors=loaded.quantization.quantized,
        kept_tensors=loaded.quantization.kept,
        vocab_size=loaded.vocab_size,
        context_limit=loaded.context_limit,
        flags={
            **normalize_flags(spec.engine, context_limit=loaded.context_limit, dtype=loaded.dtype),
            **read_number_format(os.environ),
        },
        device_class=device_class(device),
        runtime_facts={
            "device": device,
            "machine": platform.machine(),
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
            "checkpointTensors": len(loaded.tensors),
            **applied_thread_settings(),
            "reading": loaded.reading.describe(),
            "kernels": kernel_facts(),
            "topology": topology_facts(),
            **facts,
        },
        adapters=loaded.adapters,
    )
