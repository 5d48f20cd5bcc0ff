"""The container engine that kind talks to: the one that runs already, or a private dockerd of our own.

The private one has its own socket, data, pid file and address pools below the cache, and is stopped only by its pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster import pins
from e2e.cluster.content import write_atomically
from e2e.cluster.errors import ClusterError, CommandError
from e2e.cluster.machine import Machine
from e2e.cluster.progress import output, run, succeeds, tail

BRIDGE_ADDRESS = "172.31.200.1/24"
POOL = "172.31.208.0/20"
START_S = 60.0
STOP_S = 45.0
WRAPPER = pins.HERE / "oci-without-sys-resource.sh"


@dataclass(frozen=True)
class Engine:
    """How to reach a docker engine: environment for `docker` and `kind`."""

    environment: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """PATH for programs that call `docker`."""
        return self.environment.get("PATH") or os.environ.get("PATH", os.defpath)

    def docker(self, *arguments: str, timeout_s: float = 120.0) -> str:
        """Standard output of a docker command."""
        return output(["docker", *arguments], env=self.environment, timeout_s=timeout_s)

    def answers(self) -> bool:
        """Whether the engine is there."""
        if shutil.which("docker", path=self.path) is None:
            return False
        command = ["docker", "version", "--format", "{{.Server.Version}}"]
        return succeeds(command, env=self.environment, timeout_s=10)

    def has_image(self, reference: str) -> bool:
        """Whether the engine has this image."""
        return succeeds(["docker", "image", "inspect", reference], env=self.environment)

    def container_state(self, name: str) -> str | None:
        """`running`, `exited`, ... or None when there is no such container."""
        try:
            return self.docker("container", "inspect", "--format", "{{.State.Status}}", name).strip()
        except CommandError:
            return None


def private_socket(home: Path) -> str:
    """DOCKER_HOST of the private engine."""
    return f"unix://{home / 'docker.sock'}"


class PrivateEngine:
    """A dockerd that belongs to the cache directory."""

    def __init__(self, home: Path, *, programs: Path, machine: Machine, logs: Path) -> None:
        self._home = home
        self._programs = programs
        self._machine = machine
        self._log = logs / "dockerd.log"
        self._socket = home / "docker.sock"
        self._pid_file = home / "docker.pid"
        self._data = home / "data"
        self._forward = home / "forward-policy"

    def engine(self) -> Engine:
        """How to reach it."""
        return Engine({"DOCKER_HOST": private_socket(self._home), "PATH": self._path()})

    def _path(self) -> str:
        # Our docker client first: a newer one on the machine may refuse to talk to an engine as old as Debian's.
        return (
            f"{self._programs}/usr/bin:{self._programs}/usr/sbin:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        )

    def pid(self) -> int | None:
        """The process id while it runs. A reused pid is recognised by its command line."""
        try:
            pid = int(self._pid_file.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if str(self._pid_file).encode() in command else None

    def start(self) -> Engine:
        """Start it unless it runs; returns when it answers."""
        engine = self.engine()
        if self.pid() is not None and engine.answers():
            return engine
        self._home.mkdir(parents=True, exist_ok=True)
        self._remember_forward_policy()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        for leftover in (self._pid_file, self._socket):
            leftover.unlink(missing_ok=True)
        write_atomically(self._home / "daemon.json", json.dumps(daemon_configuration(self._machine)))
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(os.environ, PATH=self._path()),
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and process.poll() is None:
            if engine.answers():
                return engine
            time.sleep(0.3)
        raise ClusterError(f"dockerd did not start\n{tail(self._log.read_text(errors='replace'))}\nlog: {self._log}")

    def _remember_forward_policy(self) -> None:
        # dockerd sets it to DROP when it has to switch on forwarding itself, and never sets it back.
        if not self._forward.exists():
            write_atomically(self._forward, forward_policy(output(["iptables", "-S", "FORWARD"])))

    def _command(self) -> list[str]:
        return [
            "dockerd",
            "--config-file", str(self._home / "daemon.json"),
            "--data-root", str(self._data),
            "--exec-root", str(self._home / "exec"),
            "--pidfile", str(self._pid_file),
            "--host", private_socket(self._home),
            "--storage-driver", "overlay2",
            "--exec-opt", "native.cgroupdriver=cgroupfs",
            # The default asks for a negative score, which needs CAP_SYS_RESOURCE.
            "--oom-score-adjust", "0",
            "--bip", BRIDGE_ADDRESS,
            "--default-address-pool", f"base={POOL},size=24",
        ]  # fmt: skip

    def stop(self) -> None:
        """Stop it by its pid. Containers stop with it."""
        pid = self.pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while self.pid() is not None:
            if time.monotonic() > deadline:
                raise ClusterError(f"dockerd (pid {pid}) does not stop; log: {self._log}")
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.2)

    def purge(self) -> None:
        """Delete its data and the firewall chains and bridges it left. Only after `stop`."""
        log = self._log
        with contextlib.suppress(CommandError):
            run(["ip", "link", "delete", "docker0"], log=log)
        for table in ("nat", "filter"):
            with contextlib.suppress(CommandError):
                for command in leftover_rules(output(["iptables-save", "-t", table])):
                    run(["iptables", "-w", "-t", table, *command], log=log)
        if self._forward.exists():
            run(["iptables", "-w", "-P", "FORWARD", self._forward.read_text()], log=log)
        shutil.rmtree(self._home, ignore_errors=True)


def daemon_configuration(machine: Machine) -> dict[str, object]:
    """dockerd's configuration file: the wrapper only where the capability is missing."""
    if machine.sys_resource:
        return {}
    return {"runtimes": {"bounded": {"path": str(WRAPPER)}}, "default-runtime": "bounded"}


def forward_policy(listed: str) -> str:
    """The policy of the chain FORWARD, from the text of `iptables -S FORWARD`."""
    for line in listed.splitlines():
        if line.startswith("-P FORWARD "):
            return line.split()[2]
    return "ACCEPT"


_OURS = re.compile(r" -[io] (?:docker0|br-[0-9a-f]{12})(?: |$)|-[sd] 172\.31\.2[0-2][0-9]\.|-j DOCKER")


def leftover_rules(saved: str) -> Iterable[list[str]]:
    """iptables arguments that remove what dockerd added, from the text of `iptables-save`.

    Rules first (a chain can go only when nothing jumps to it), then flush, then delete the chains.
    """
    lines = saved.splitlines()
    chains = [line.split()[0][1:] for line in lines if line.startswith(":DOCKER")]
    for line in lines:
        if line.startswith("-A ") and not line.startswith("-A DOCKER") and _OURS.search(line):
            yield ["-D", *line.split()[1:]]
    for action in ("-F", "-X"):
        for chain in chains:
            yield [action, chain]
