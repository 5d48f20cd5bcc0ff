"""Settings of one run, from the environment: where the cache is, which ports, which provider."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError

PROVIDERS = ("auto", "offline", "existing")
API_PORT = 16443
NODE_PORTS = (30080, 30081, 30082, 30083)
HOST_PORTS = (31080, 31081, 31082, 31083)


@dataclass(frozen=True)
class Settings:
    """Where things are. Nothing here reads the environment again."""

    cache: Path
    provider: str = "auto"
    api_port: int = API_PORT
    host_ports: tuple[int, ...] = HOST_PORTS
    # Empty: the one debootstrap takes by itself.
    mirror: str = ""

    @property
    def kubeconfig(self) -> Path:
        return self.cache / "kubeconfig"

    @property
    def models(self) -> Path:
        return self.cache / "models"

    @property
    def engine_home(self) -> Path:
        return self.cache / "docker"

    @property
    def logs(self) -> Path:
        return self.cache / "log"


def from_environment(environment: Mapping[str, str], *, home: Path, provider: str | None = None) -> Settings:
    """Settings for this run; raises ClusterError for a value that makes no sense."""
    chosen = provider or environment.get("PRATIQUE_CLUSTER") or "auto"
    if chosen not in PROVIDERS:
        raise ClusterError(f"provider {chosen!r} is not one of {', '.join(PROVIDERS)}")
    ports = _ports(environment.get("PRATIQUE_NODE_PORTS", ""))
    return Settings(
        cache=Path(environment.get("PRATIQUE_CACHE") or home / ".cache" / "pratique").expanduser().absolute(),
        provider=chosen,
        api_port=_port(environment.get("PRATIQUE_API_PORT") or str(API_PORT)),
        host_ports=ports or HOST_PORTS,
        mirror=environment.get("PRATIQUE_DEBIAN_MIRROR", ""),
    )


def _ports(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    ports = tuple(_port(part) for part in text.split(","))
    if len(ports) != len(NODE_PORTS):
        raise ClusterError(f"PRATIQUE_NODE_PORTS needs {len(NODE_PORTS)} ports, separated by commas: {text!r}")
    return ports


def _port(text: str) -> int:
    if not text.strip().isdigit() or not 0 < int(text) < 65536:
        raise ClusterError(f"{text!r} is not a port")
    return int(text)


def is_free(port: int) -> bool:
    """Whether 127.0.0.1:port can be bound now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def first_free(port: int, *, free: Callable[[int], bool] = is_free, tries: int = 100) -> int:
    """`port` itself, or the next one that nothing listens on."""
    for candidate in range(port, port + tries):
        if free(candidate):
            return candidate
    raise ClusterError(f"no free port in {port}..{port + tries - 1}")
