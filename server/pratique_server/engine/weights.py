"""Find a folder's weights and read all of them, several files at a time, each hashed while it is read.

In: a folder with one safetensors file, or shards with an index. Out: every tensor by name, an entry for each file, and how quick
it was. The rule: exactly what the index assigns is what the shards hold; files that can run code when they are read are never opened.
"""

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from pratique_contract.canonical import JSON_ERRORS
from pratique_server.artifacts.files import LoadedFile, hash_json_bytes, is_pickle
from pratique_server.engine.protocol import LoadError
from pratique_server.engine.safetensors_file import read_safetensors
from pratique_server.engine.threads import available_cores

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
# What a training run leaves beside its weights: pickles too, but not weights, and never opened.
_LEFT_BY_TRAINING: Final = ("optimizer", "scheduler", "scaler", "rng_state", "training_args")
_NAMES_SHOWN: Final = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReadingFacts:
    """How the weights were read: what the host could do, not what the release is."""

    size_bytes: int
    seconds: float
    files: int
    parallel: int
    overlapped: bool

    def describe(self) -> dict[str, Any]:
        """For the manifest's runtime section."""
        return {
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "gigabytesPerSecond": round(self.size_bytes / max(self.seconds, 1e-9) / 1e9, 3),
            "files": self.files,
            "filesAtOnce": self.parallel,
            "hashedBesideReading": self.overlapped,
        }


@dataclass(frozen=True)
class Weights:
    """Tensors by name as the files hold them, the files' entries (sorted by path), and how they were read."""

    tensors: dict[str, torch.Tensor]
    files: list[LoadedFile]
    reading: ReadingFacts


def read_weights(folder: Path) -> Weights:
    """Read everything the folder declares; raises ``LoadError`` with a sentence."""
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.exists() and index.exists():
        raise LoadError(f"The model folder has both {SINGLE_FILE} and {INDEX_FILE}: it is not clear which is meant.")
    if single.exists():
        found, reading = read_files([single])
        tensors, entry = found[0]
        return Weights(tensors, [entry], reading)
    if index.exists():
        return _read_shards(folder)
    raise LoadError(_explain_no_weights(folder))


def read_files(
    paths: list[Path], *, cores: int | None = None
) -> tuple[list[tuple[dict[str, torch.Tensor], LoadedFile]], ReadingFacts]:
    """Read safetensors files, as many at once as there are cores; a core that no file needs hashes behind a reader."""
    available = cores or available_cores()
    parallel = max(1, min(len(paths), available))
    overlap = parallel < available
    begun = time.perf_counter()
    pool = ThreadPoolExecutor(parallel, thread_name_prefix="read")
    try:
        found = list(pool.map(lambda path: read_safetensors(path, overlap=overlap), paths))
    finally:
        pool.shutdown(cancel_futures=True)  # after a failure: no file that nobody will use
    facts = ReadingFacts(
        size_bytes=sum(entry.size for _, entry in found),
        seconds=time.perf_counter() - begun,
        files=len(paths),
        parallel=parallel,
        overlapped=overlap,
    )
    logger.info("Read and hashed weights", extra={"fields": facts.describe()})
    return found, facts


def _read_shards(folder: Path) -> Weights:
    content = read_bytes(folder / INDEX_FILE)
    try:
        weight_map = {str(name): str(shard) for name, shard in json.loads(content)["weight_map"].items()}
    except (*JSON_ERRORS, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"{INDEX_FILE} is not a valid index: {error}.") from error
    shards = sorted(set(weight_map.values()))
    outside = [shard for shard in shards if Path(shard).name != shard or not shard.endswith(".safetensors")]
    if outside:
        raise LoadError(f"{INDEX_FILE} names {listed(outside)}; shards must be safetensors files in the same folder.")
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise LoadError(f"{INDEX_FILE} names {listed(missing)}, which the folder does not have.")
    found, reading = read_files([folder / shard for shard in shards])
    state: dict[str, torch.Tensor] = {}
    for shard, (tensors, _) in zip(shards, found, strict=True):
        _check_shard(shard, set(tensors), {name for name, owner in weight_map.items() if owner == shard})
        state.update(tensors)
    files = [hash_json_bytes(INDEX_FILE, content), *(entry for _, entry in found)]
    return Weights(state, sorted(files, key=lambda entry: entry.path), reading)


def _check_shard(shard: str, found: set[str], expected: set[str]) -> None:
    if absent := sorted(expected - found):
        raise LoadError(f"{shard} lacks {listed(absent)}, which {INDEX_FILE} says it holds.")
    if extra := sorted(found - expected):
        raise LoadError(f"{shard} holds {listed(extra)}, which {INDEX_FILE} does not assign to it.")


def _explain_no_weights(folder: Path) -> str:
    names = sorted(file.name for file in folder.iterdir())
    if pickles := [name for name in names if is_pickled_weights(name)]:
        return (
            f"The model folder has its weights only as {listed(pickles)}; files that can run code when read are "
            "refused. Convert the model to safetensors."
        )
    if others := [name for name in names if name.endswith((".safetensors", ".gguf"))]:
        return (
            f"The model folder has neither {SINGLE_FILE} nor {INDEX_FILE}, only {listed(others)}, which nothing names."
        )
    return f"The model folder has neither {SINGLE_FILE} nor {INDEX_FILE}."


def is_pickled_weights(name: str) -> bool:
    """Whether a file of this name would hold weights in a form that can run code when it is read."""
    return is_pickle(name) and not name.startswith(_LEFT_BY_TRAINING)


def read_bytes(path: Path) -> bytes:
    """Raises ``LoadError`` with a sentence."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise LoadError(f"The model folder has no {path.name}.") from error
    except OSError as error:
        raise LoadError(f"{path.name} cannot be read: {error.strerror or error}.") from error


def listed(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
