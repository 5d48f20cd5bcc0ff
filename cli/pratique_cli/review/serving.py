"""Two served releases on this machine, for as long as a test needs them: ``pratique serve`` in processes of their own."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import httpx

from pratique_cli.errors import CliError
from pratique_cli.load import Target
from pratique_contract.certificates import must_verify
from pratique_contract.constants import MANIFEST_PATH, VERDICT_PATH
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.review import find_mismatch
from pratique_contract.serving import DrainSpec, ReleaseSpec, ServingSpec

HOST: Final = "127.0.0.1"
START_SECONDS_MAX: Final = 600.0
POLL_SECONDS: Final = 0.25
END_SECONDS_MAX: Final = 20.0
LOG_LINES: Final = 3


@dataclass(frozen=True, kw_only=True)
class Served:
    """A release that answers. ``context`` is how many tokens a request may have in all."""

    name: str
    target: Target
    context: int


@contextmanager
def serve_both(
    specs: tuple[ServingSpec, ServingSpec],
    manifests: tuple[ReleaseManifest, ReleaseManifest],
    say: Callable[[str], None],
) -> Iterator[tuple[Served, Served]]:
    """The reference and the candidate, each proved to be the release it is taken for. Both end with the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pratique-review-")))
        say(f"Serving the reference and the candidate on {HOST}")
        children = [
            stack.enter_context(_start(name, spec, folder))
            for name, spec in zip(("reference", "candidate"), specs, strict=True)
        ]
        reference, candidate = (
            _served(child, spec, manifest) for child, spec, manifest in zip(children, specs, manifests, strict=True)
        )
        yield reference, candidate


@dataclass(frozen=True, kw_only=True)
class _Child:
    """A server process, and where it answers."""

    name: str
    process: "subprocess.Popen[bytes]"
    port: int
    management: int
    log: Path


@contextmanager
def _start(name: str, spec: ServingSpec, folder: Path) -> Iterator[_Child]:
    port, management = _free_ports(2)
    document, log = folder / f"{name}.json", folder / f"{name}.log"
    # No record: the release is checked against the review's own manifest, also when it was recorded by another build.
    changes: dict[str, Any] = {
        "host": HOST,
        "api_port": port,
        "management_port": management,
        "api_keys_path": None,
        "release": ReleaseSpec(policy="TrustFirst"),
        "drain": DrainSpec(pre_stop_seconds=0, deadline_seconds=5),
    }
    document.write_text(spec.model_copy(update=changes).model_dump_json(by_alias=True), encoding="utf-8")
    with log.open("wb") as output:
        process = start_tied(["-m", "pratique_cli", "serve", "--config", str(document)], output)
    try:
        yield _Child(name=name, process=process, port=port, management=management, log=log)
    finally:
        _end(process)


def start_tied(arguments: list[str], output: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Python with these arguments, ended by the kernel (where it is Linux) when this process ends in a way that leaves no time to clean up:
    killed, or out of memory. Two servers with a model each would stay behind."""
    tie = [sys.executable, "-c", _TIE] if sys.platform == "linux" else [sys.executable]
    return subprocess.Popen([*tie, *arguments], stdout=output, stderr=subprocess.STDOUT, env=dict(os.environ))


# prctl(PR_SET_PDEATHSIG, SIGTERM) stays in force over exec.
_TIE: Final = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def _served(child: _Child, spec: ServingSpec, manifest: ReleaseManifest) -> Served:
    """Once it is ready and is what the review is about; raises ``CliError``."""
    loaded = _wait_served(child.name, child.process, child.management, child.log)
    mismatch = find_mismatch(manifest, loaded, other_build=child.name == "reference")
    if mismatch is not None:
        raise CliError(f"The {child.name}'s files are not the release that its file describes: {mismatch.message}")
    return Served(
        name=child.name,
        target=Target(url=f"http://{HOST}:{child.port}", model=spec.served_model_name),
        context=spec.engine.max_model_len or loaded.special_tokens.context_limit,
    )


def _wait_served(name: str, child: "subprocess.Popen[bytes]", management: int, log: Path) -> ReleaseManifest:
    """Until the verdict is there; raises ``CliError`` with the verdict's or the log's own words when it is not a pass."""
    deadline = time.monotonic() + START_SECONDS_MAX
    url = f"http://{HOST}:{management}"
    with httpx.Client(base_url=url, timeout=5, trust_env=False, verify=must_verify(url)) as client:
        while time.monotonic() < deadline:
            if child.poll() is not None:
                raise CliError(f"The {name}'s server ended with {child.returncode}: {_last_lines(log)}")
            verdict = _get(client, VERDICT_PATH)
            if verdict is not None and verdict.get("result") == "Fail":
                raise CliError(f"The {name} is not served: {verdict.get('reason')}: {verdict.get('message')}")
            if verdict is not None and verdict.get("result") == "Pass":
                value = _get(client, MANIFEST_PATH) or {}
                fields = {key: item for key, item in value.items() if key not in ("digests", "fingerprint")}
                return ReleaseManifest.from_json_value(fields)
            time.sleep(POLL_SECONDS)
    raise CliError(f"The {name} was not served within {START_SECONDS_MAX:g} s: {_last_lines(log)}")


def _get(client: httpx.Client, path: str) -> dict[str, Any] | None:
    try:
        value = client.get(path).json()
    except (httpx.HTTPError, json.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return " | ".join(lines[-LOG_LINES:]) or "it said nothing"


def _end(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _free_ports(count: int) -> list[int]:
    """Held open together, so that no two are the same."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [int(sock.getsockname()[1]) for sock in sockets]
