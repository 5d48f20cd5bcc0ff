"""How quick weights are read and hashed, beside plain SHA-256 of the same bytes: ``make bench-hash``.

Files of a model's shape are made in a temporary folder and read from the page cache, so that the disk says
nothing. Every round runs every way once, in a new order, so that what else uses the machine touches all of
them alike; a way's share of plain SHA-256 is the median of the rounds' own ratios. Results go to
``bench/results/hash-speed.json`` and ``.md``. No test holds a limit against them.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from bench.conditions import cpu_seconds, describe_host
from pratique_server.artifacts.files import hash_bytes_file
from pratique_server.engine.safetensors_file import read_safetensors
from pratique_server.engine.weights import read_files

RESULTS: Final = Path(__file__).parent / "results"
SHARDS: Final = 4
# Rows and columns of tensors as they stand in a model's file (bfloat16): embedding, attention, feed-forward, norm.
_SHAPES: Final = ((8192, 576), (576, 576), (192, 576), (1536, 576), (576, 1536), (576,))

Way = Callable[[], object]


def make_file(path: Path, size_bytes: int) -> Path:
    """A safetensors file of about this size with many tensors."""
    tensors: dict[str, torch.Tensor] = {}
    total = 0
    while total < size_bytes:
        shape = _SHAPES[len(tensors) % len(_SHAPES)]
        tensor = torch.randint(0, 2**15, shape, dtype=torch.int16).view(torch.bfloat16)
        tensors[f"t{len(tensors):05}"] = tensor
        total += tensor.nbytes
    save_file(tensors, path)
    return path


def ways(single: Path, shards: list[Path], cores: int) -> dict[str, dict[str, Way]]:
    """Ways by case; the first of each case is what the others are compared with."""
    content = single.read_bytes()

    def plain(paths: list[Path]) -> Way:
        def run() -> None:
            with ThreadPoolExecutor(cores) as pool:
                list(pool.map(hash_bytes_file, paths))

        return run

    return {
        "one file": {
            "sha256 of the file": plain([single]),
            "sha256 of bytes in memory": lambda: hash_memory(content),
            "tensors, hashed in turn": lambda: read_safetensors(single),
            "tensors, hashed beside (used)": lambda: read_files([single], cores=cores),
        },
        f"{len(shards)} shards": {
            "sha256 of the files, all cores": plain(shards),
            "tensors, one file after another": lambda: [read_safetensors(path) for path in shards],
            "tensors, several at once (used)": lambda: read_files(shards, cores=cores),
        },
    }


def hash_memory(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


def measure(
    cases: dict[str, dict[str, Way]], *, rounds: int, seed: int
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Wall and processor seconds of every run, by case and way, in rounds."""
    order = [(case, name, way) for case, named in cases.items() for name, way in named.items()]
    times: dict[str, dict[str, list[tuple[float, float]]]] = {
        case: {name: [] for name in cases[case]} for case in cases
    }
    shuffle = random.Random(seed)
    for round_number in range(rounds + 1):
        shuffle.shuffle(order)
        for case, name, way in order:
            wall, used = time.perf_counter(), time.process_time()
            way()
            taken = (time.perf_counter() - wall, time.process_time() - used)
            if round_number:  # the first round only warms up
                times[case][name].append(taken)
    return times


def summarize(times: dict[str, dict[str, list[tuple[float, float]]]], sizes: dict[str, int]) -> list[dict[str, Any]]:
    """One row for each way."""
    rows = []
    for case, named in times.items():
        plain = next(iter(named.values()))
        for name, taken in named.items():
            ratios = [base[0] / own[0] for base, own in zip(plain, taken, strict=True)]
            walls = [wall for wall, _ in taken]
            rows.append({
                "case": case,
                "way": name,
                "gigabytesPerSecondMedian": round(sizes[case] / statistics.median(walls) / 1e9, 3),
                "gigabytesPerSecondBest": round(sizes[case] / min(walls) / 1e9, 3),
                "shareOfPlainMedian": round(statistics.median(ratios), 3),
                "cpuSecondsPerGigabyte": round(statistics.median(used for _, used in taken) / sizes[case] * 1e9, 3),
            })  # fmt: skip
    return rows


def _under(conditions: dict[str, Any]) -> str:
    return (
        f"{conditions['at']}: {conditions['processor']}, {conditions['cores']} cores, {conditions['openssl']}, "
        f"torch {conditions['torch']}; {conditions['megabytes']} MB in the page cache, {conditions['rounds']} interleaved "
        f"rounds, seed {conditions['seed']}. Others used {conditions['coresUsedByOthers']} cores meanwhile "
        f"(load {conditions['loadAverage']} before)."
    )


def to_markdown(report: dict[str, Any]) -> str:
    conditions, rows = report["conditions"], report["rows"]
    lines = [
        "# Reading and hashing weights",
        "",
        _under(conditions),
        "",
        "| case | way | GB/s (median) | GB/s (best) | share of plain sha256 (median of rounds) | CPU s per GB |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['case']} | {row['way']} | {row['gigabytesPerSecondMedian']:.2f} | {row['gigabytesPerSecondBest']:.2f} "
        f"| {row['shareOfPlainMedian']:.0%} | {row['cpuSecondsPerGigabyte']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    host, cores = describe_host(), len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        size = options.megabytes * 1_000_000
        single = make_file(Path(folder) / "single.safetensors", size)
        shards = [make_file(Path(folder) / f"shard-{n}.safetensors", size // SHARDS) for n in range(SHARDS)]
        sizes = {"one file": single.stat().st_size, f"{SHARDS} shards": sum(path.stat().st_size for path in shards)}
        begun, (all_before, own_before) = time.perf_counter(), cpu_seconds()
        times = measure(ways(single, shards, cores), rounds=options.rounds, seed=options.seed)
        (all_after, own_after), seconds = cpu_seconds(), time.perf_counter() - begun
    conditions = {
        **host,
        "torch": torch.__version__,
        "megabytes": options.megabytes,
        "rounds": options.rounds,
        "seed": options.seed,
        "coresUsedByOthers": round(max(0.0, (all_after - all_before) - (own_after - own_before)) / seconds, 2),
    }
    report = {"conditions": conditions, "rows": summarize(times, sizes)}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "hash-speed.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / "hash-speed.md").write_text(to_markdown(report))
    print(to_markdown(report), end="")


if __name__ == "__main__":
    main()
