"""Reading, copying and hashing overlap, and the digest is still that of every byte in order."""

import hashlib
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pratique_server.engine.hashing import CHUNK_BYTES, CHUNKS_AHEAD_MAX, open_digest
from pratique_server.engine.protocol import LoadError
from pratique_server.engine.safetensors_file import read_safetensors
from pratique_server.engine.weights import read_files


def hash_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "hash"]


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Three files: larger than all the chunks a reader may be ahead, small, and empty."""
    paths = []
    for number, count in enumerate([(CHUNKS_AHEAD_MAX + 3) * CHUNK_BYTES + 17, 33, 0]):
        values = (torch.arange(count) % 251).to(torch.uint8)
        save_file({f"t{number}": values}, tmp_path / f"{number}.safetensors")
        paths.append(tmp_path / f"{number}.safetensors")
    return paths


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("sizes", [[], [0], [1], [5, 0, 3_000_000, 1]])
def test_the_digest_is_that_of_all_chunks_in_order(overlap: bool, sizes: list[int]) -> None:
    chunks = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    with open_digest(overlap=overlap) as digest:
        for chunk in chunks:
            digest.update(memoryview(chunk))
        assert digest.finish() == f"sha256:{hashlib.sha256(b''.join(chunks)).hexdigest()}"
    assert hash_threads() == []


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_the_number_of_cores_changes_neither_tensors_nor_digests(shards: list[Path], cores: int) -> None:
    found, facts = read_files(shards, cores=cores)
    assert [entry.path for _, entry in found] == [path.name for path in shards]
    for path, (tensors, entry) in zip(shards, found, strict=True):
        expected, plain = read_safetensors(path)
        assert entry == plain
        assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())
        assert entry.sha256 == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    assert (facts.parallel, facts.overlapped) == (min(cores, 3), cores > 3)


@pytest.mark.parametrize("overlap", [False, True])
def test_what_was_hashed_is_the_memory_that_computes(shards: list[Path], overlap: bool) -> None:
    """The digest is taken from the tensor's own memory: recomputed from the tensors it is the same."""
    tensors, entry = read_safetensors(shards[0], overlap=overlap)
    content = shards[0].read_bytes()
    header = content[: 8 + int.from_bytes(content[:8], "little")]
    again = hashlib.sha256(header + tensors["t0"].numpy().tobytes()).hexdigest()
    assert entry.sha256 == f"sha256:{again}"


def test_a_failing_read_leaves_no_thread_behind(shards: list[Path]) -> None:
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    with pytest.raises(LoadError, match=r"0\.safetensors is truncated"):
        read_safetensors(shards[0], overlap=True)
    with pytest.raises(LoadError, match=r"0\.safetensors is truncated"):
        read_files(shards, cores=8)
    assert hash_threads() == []
