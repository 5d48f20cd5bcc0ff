"""What the gate costs: ``make bench-gate``.

1. The gate's own time on SmolLM2, from a loaded engine to the verdict, and that of the first record under TrustFirst.
2. ``/readyz`` while the engine is saturated: at the handler, and over sockets of 127.0.0.1, beside two servers that have nothing else
   to do (``bench.readyz``): what those take is the machine's and the library's, not that of a busy engine.
3. What idle re-verification costs users: time to first token of single requests in blocks with and without it, in turn. Rounds come
   ``EXAGGERATION`` times as often as by default, else nothing could be seen; what one attempt costs is then set against the default.

Results go to ``bench/results/gate-cost.json`` and ``.md`` with the conditions. No test holds a limit against them.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from bench.conditions import cpu_seconds, describe_host
from bench.gate_server import SWITCH
from bench.readyz import STREAMS, ask_in_turn, chat_body, reference_servers, saturated, summarize
from tests.support.models import smollm2
from tests.support.ports import free_ports

RESULTS: Final = Path(__file__).parent / "results"
INTERVAL_DEFAULT: Final = 600.0
EXAGGERATION: Final = 60
START_SECONDS_MAX: Final = 300.0
REQUEST_GAP_SECONDS: Final = (2.0, 5.0)
REQUEST_GAP_MEAN: Final = sum(REQUEST_GAP_SECONDS) / 2
WORDS: Final = ("harbour", "pilot", "anchor", "lantern", "compass", "cargo", "rudder", "island")


class Server:
    """One serving process and where it answers."""

    def __init__(self, folder: Path, child: "subprocess.Popen[bytes]", api: int, management: int) -> None:
        self.folder, self.child = folder, child
        self.api, self.management = f"http://127.0.0.1:{api}", f"http://127.0.0.1:{management}"
        self.management_port = management

    def wait_verdict(self) -> dict[str, Any]:
        """The verdict, with the processor time that all of the server used from the beginning of the gate to it (``cpuSeconds``)."""
        end, begun = time.monotonic() + START_SECONDS_MAX, 0.0
        while time.monotonic() < end:
            if self.child.poll() is not None:
                raise RuntimeError(f"the server ended: {(self.folder / 'log').read_text()[-2000:]}")
            try:
                verdict: dict[str, Any] = httpx.get(f"{self.management}/verdict", trust_env=False).json()
            except httpx.TransportError:
                verdict = {"result": "Pending"}
            if verdict["result"] != "Pending":
                return {**verdict, "cpuSeconds": round(_tree_cpu_seconds(self.child.pid) - begun, 2)}
            if verdict.get("reason") != "Verifying":
                begun = _tree_cpu_seconds(self.child.pid)
            time.sleep(0.05)
        raise RuntimeError("no verdict in time")


def _tree_cpu_seconds(pid: int) -> float:
    """Processor time of a process and of all that it started and that still live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(_tree_cpu_seconds(int(child)) for child in children)


@contextmanager
def serving(folder: Path, release: dict[str, Any]) -> Iterator[Server]:
    """Serve SmolLM2 in a process of its own."""
    ports = free_ports(2)
    model = smollm2()
    spec = {
        "servedModelName": "smollm2",
        "model": {"path": str(model), "uri": f"file://{model}"},
        "release": release,
        "host": "127.0.0.1",
        "apiPort": ports[0],
        "managementPort": ports[1],
        "probeTimeoutSeconds": 120,
    }
    (folder / "serving.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "bench.gate_server", str(folder / "serving.json"), str(folder)]
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield Server(folder, child, *ports)
    finally:
        child.terminate()
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def measure_gate(folder: Path, runs: int) -> dict[str, Any]:
    """Record once under TrustFirst, then prove that record ``runs`` times."""
    with serving(folder, {"policy": "TrustFirst"}) as server:
        first = _require_pass(server.wait_verdict())
        record = httpx.get(f"{server.management}/record", trust_env=False)
        (folder / "record.json").write_bytes(record.content)
    gates = []
    for _ in range(runs):
        with serving(folder, _enforce(folder)) as server:
            gates.append(_require_pass(server.wait_verdict()))
    checks = {check["name"]: check["durationMs"] for check in first["checks"]}
    return {
        "fingerprint": first["fingerprint"],
        "gateSeconds": [round(gate["durationMs"] / 1000, 2) for gate in gates],
        "gateCpuSeconds": [gate["cpuSeconds"] for gate in gates],
        "checksMs": {check["name"]: check["durationMs"] for check in gates[-1]["checks"]},
        "recordAndProveSeconds": round(checks["own-record"] / 1000, 2),
        "firstPodCpuSeconds": first["cpuSeconds"],
    }


def measure_readyz(folder: Path, seconds: float) -> dict[str, Any]:
    """Latencies of /readyz (ms), idle and saturated."""
    found: dict[str, Any] = {}
    with serving(folder, {**_enforce(folder), "reverify": {"intervalSeconds": 0}}) as server:
        _require_pass(server.wait_verdict())
        with reference_servers() as references:
            ports = {"ours": server.management_port, **references}
            found["idle"] = ask_in_turn(ports, seconds / 2)
            with saturated(server.api):
                time.sleep(3)
                found["saturated"] = ask_in_turn(ports, seconds)
                stats = httpx.get(f"{server.management}/stats", trust_env=False).json()["engine"]
            found["engineWhileSaturated"] = {name: stats[name] for name in ("running", "waiting")}
    taken = json.loads((folder / "taken.json").read_text())
    return {**found, **{name: summarize(seconds) for name, seconds in taken.items()}}


def measure_users(folder: Path, *, blocks: int, requests: int, seed: int) -> dict[str, Any]:
    """Time to first token (ms) of single users with re-verification off and on, block by block."""
    dice = random.Random(seed)
    times: dict[str, list[float]] = {"off": [], "on": []}
    reverify = {"intervalSeconds": INTERVAL_DEFAULT / EXAGGERATION}
    with serving(folder, {**_enforce(folder), "reverify": reverify}) as server:
        _require_pass(server.wait_verdict())
        for block in range(blocks * 2):
            state = ("off", "on")[block % 2]
            switch = folder / SWITCH
            switch.touch() if state == "on" else switch.unlink(missing_ok=True)
            for number in range(requests + 1):
                # Longer than the two seconds of quiet that re-verification waits for, and at no moment that it could know.
                time.sleep(dice.uniform(*REQUEST_GAP_SECONDS))
                taken = first_token_seconds(server.api, f"{dice.choice(WORDS)} {dice.randrange(1000)}")
                if number:  # the first of a block may still meet the other state
                    times[state].append(taken)
        metrics = httpx.get(f"{server.management}/metrics", trust_env=False).text
    rounds = [line for line in metrics.splitlines() if line.startswith("pratique_reverifications_total{")]
    mean = {state: statistics.fmean(values) for state, values in times.items()}
    attempts = sum(float(line.rpartition(" ")[2]) for line in rounds)
    # What one attempt cost all users together; by default there is one in ten minutes, whatever users do.
    seconds_per_attempt = (mean["on"] - mean["off"]) * len(times["on"]) / max(attempts, 1)
    requests_in_interval = INTERVAL_DEFAULT / REQUEST_GAP_MEAN
    return {
        "off": summarize(times["off"]),
        "on": summarize(times["on"]),
        "rounds": rounds,
        "meanRatioExaggerated": round(mean["on"] / mean["off"], 4),
        "secondsPerAttempt": round(seconds_per_attempt, 4),
        "overheadAtDefault": round(seconds_per_attempt / (requests_in_interval * mean["off"]), 5),
    }


def first_token_seconds(url: str, text: str) -> float:
    body = chat_body(f"Say this back: {text}", max_tokens=6)
    begun, taken = time.perf_counter(), None
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False) as response:
        for line in response.iter_lines():
            if taken is None and '"content":"' in line and '"content":""' not in line:
                taken = time.perf_counter() - begun
    if taken is None:
        raise RuntimeError(f"no token: HTTP {response.status_code}")
    return taken


def _enforce(folder: Path) -> dict[str, Any]:
    return {"policy": "Enforce", "recordPath": str(folder / "record.json")}


def _require_pass(verdict: dict[str, Any]) -> dict[str, Any]:
    if verdict["result"] != "Pass":
        raise RuntimeError(f"{verdict['reason']}: {verdict['message']}")
    return verdict


def to_markdown(report: dict[str, Any]) -> str:
    conditions, gate, ready, users = (report[name] for name in ("conditions", "gate", "readyz", "users"))
    host = (
        f"{conditions['at']}: {conditions['processor']}, {conditions['cores']} cores; SmolLM2-135M-Instruct in BF16, release "
        f"`{gate['fingerprint'][:19]}…`, engine on one thread. Others used {conditions['coresUsedByOthers']} cores meanwhile "
        f"(load {conditions['loadAverage']} before)."
    )
    times = (
        f"Gate: {_seconds(gate['gateSeconds'])}, of which {_seconds(gate['gateCpuSeconds'])} of processor time (runs one after the "
        f"other). First pod under TrustFirst, record made and proved: {gate['recordAndProveSeconds']:.1f} s; its whole gate used "
        f"{gate['firstPodCpuSeconds']:.1f} s of processor time. On a machine of one's own the two are nearly the same."
    )
    engine = ready["engineWhileSaturated"]
    saturated = (
        f"Saturated: {STREAMS} streams, {engine['running']} running and {engine['waiting']} waiting. *Its port alone* is the same "
        "management port in a process of its own, with no engine; *bare* answers every request with the same bytes: the machine's share. "
        "All are asked in turn by one process; the clients of the streams run at the lowest priority, since their place is elsewhere."
    )
    rate = (
        f"Single requests 2 to 5 s apart, blocks in turn; a round every {INTERVAL_DEFAULT / EXAGGERATION:g} s, {EXAGGERATION} "
        f"times as often as by default. Rounds: {', '.join(f'`{line}`' for line in users['rounds'])}."
    )
    means = (
        f"Means: {users['meanRatioExaggerated']:.3f} to 1. One attempt cost the users {users['secondsPerAttempt']:.3f} s together; "
        f"with one in {INTERVAL_DEFAULT:g} s, as by default, and a request every {REQUEST_GAP_MEAN:g} s that is "
        f"{users['overheadAtDefault']:.2%}."
    )
    checks = [f"| {name} | {value:.0f} |" for name, value in gate["checksMs"].items()]
    figures = "count | p50 | p95 | p99 | max |"
    return "\n".join(
        [
            *("# What the gate costs", "", host, ""),
            *("## From a loaded engine to the verdict", "", times, "", "| check | ms |", "|---|---|", *checks, ""),
            *("## `/readyz` (ms)", "", saturated, "", f"| where | state | {figures}", "|---|---|---|---|---|---|---|"),
            *_readyz_rows(ready),
            *("", "## Users' time to first token while idle re-verification runs (ms)", "", rate, ""),
            *(f"| re-verification | {figures}", "|---|---|---|---|---|---|"),
            *(_row(state, None, users[state]) for state in ("off", "on")),
            *("", means, ""),
        ]
    )


def _seconds(values: list[float]) -> str:
    return ", ".join(f"{value:.1f} s" for value in values)


def _readyz_rows(ready: dict[str, Any]) -> list[str]:
    servers = {"ours": "this server", "alone": "its port alone", "bare": "bare"}
    connections = {"kept": "kept open", "new": "new for each"}
    rows = [
        _row(f"{title}, {how}", state, ready[state][f"{name} {connection}"])
        for state in ("idle", "saturated")
        for name, title in servers.items()
        for connection, how in connections.items()
    ]
    within = {"handler": "in the handler", "server": "in the server, bytes read to bytes written"}
    return [*(_row(title, "both", ready[name]) for name, title in within.items()), *rows]


def _row(where: str, state: str | None, values: dict[str, Any]) -> str:
    cells = [
        where,
        *([] if state is None else [state]),
        *(values[name] for name in ("count", "p50", "p95", "p99", "max")),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _tell(part: dict[str, Any]) -> dict[str, Any]:
    """Each part as soon as it is there: the next one takes minutes, and may fail."""
    print(json.dumps(part), file=sys.stderr, flush=True)
    return part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only-readyz", action="store_true", help="print that part, write nothing")
    options = parser.parse_args()
    host = describe_host()
    begun, (all_before, _) = time.perf_counter(), cpu_seconds()
    own_before = sum(os.times()[:4])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gate = _tell(measure_gate(folder, options.runs))
        readyz = _tell(measure_readyz(folder, options.seconds))
        if options.only_readyz:
            return
        users = _tell(measure_users(folder, blocks=options.blocks, requests=options.requests, seed=options.seed))
    (all_after, _), seconds = cpu_seconds(), time.perf_counter() - begun
    own = sum(os.times()[:4]) - own_before  # children that have ended are counted
    conditions = {
        **host,
        **vars(options),
        "secondsInAll": round(seconds),
        "coresUsedByOthers": round(max(0.0, all_after - all_before - own) / seconds, 2),
    }
    report = {"conditions": conditions, "gate": gate, "readyz": readyz, "users": users}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "gate-cost.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / "gate-cost.md").write_text(to_markdown(report))
    print(to_markdown(report), end="")


if __name__ == "__main__":
    main()
