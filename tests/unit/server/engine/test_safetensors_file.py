"""One file in, tensors and the digest of the very bytes out; anything odd is a sentence, never a guess."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pratique_server.engine.protocol import LoadError
from pratique_server.engine.safetensors_file import read_safetensors

TENSORS = {
    "a.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "b.weight": torch.arange(5).to(torch.bfloat16),
    "c.scalar": torch.tensor(7, dtype=torch.int64),
    "d.empty": torch.empty(0, 3),
    "e.flags": torch.tensor([True, False]),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    return path


def write(path: Path, header: Any, body: bytes = b"") -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + body)
    return path


def test_reads_every_tensor_and_hashes_the_whole_file(file: Path) -> None:
    tensors, entry = read_safetensors(file)
    assert set(tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    content = file.read_bytes()
    assert (entry.path, entry.size) == (file.name, len(content))
    assert entry.sha256 == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_a_change_on_disk_after_the_read_does_not_reach_the_tensors(file: Path) -> None:
    """What was hashed is what is used: the file is overwritten in place, as a shared volume may be, and nothing changes."""
    tensors, _ = read_safetensors(file)
    with file.open("r+b") as handle:
        handle.write(b"\xff" * file.stat().st_size)
    assert torch.equal(tensors["a.weight"], TENSORS["a.weight"])


@pytest.mark.parametrize("keep", [0, 4, 8, 50, -1])
def test_a_truncated_file_is_named(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(LoadError, match=r"model.safetensors is truncated: it ends after"):
        read_safetensors(file)


def test_no_memory_is_asked_for_what_the_file_does_not_hold(tmp_path: Path) -> None:
    size = 2**60
    header = {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    with pytest.raises(LoadError, match="is truncated: it ends after"):
        read_safetensors(write(tmp_path / "x.safetensors", header, b"\x00" * 8))


def test_bytes_after_the_last_tensor_are_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(LoadError, match="bytes after its last tensor"):
        read_safetensors(file)


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[1]",
        b"[" * 100_000,
        {"t": {"dtype": "U8", "shape": [float("inf")], "data_offsets": [0, 1]}},
        {"t": {"dtype": "F8_XX", "shape": [1], "data_offsets": [0, 1]}},
        {"t": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}},
        {"t": {"dtype": "U8", "shape": [1]}},
        {"t": 3},
    ],
)
def test_a_header_that_cannot_be_read_is_refused(tmp_path: Path, header: Any) -> None:
    with pytest.raises(LoadError, match="header cannot be parsed"):
        read_safetensors(write(tmp_path / "x.safetensors", header, b"\x00" * 8))


@pytest.mark.parametrize(
    ("offsets", "sentence"),
    [
        ([[0, 4], [5, 9]], "does not follow"),
        ([[0, 4], [0, 4]], "does not follow"),
        ([[0, 4], [4, 9]], "contradicts its shape"),
    ],
)
def test_gaps_overlaps_and_wrong_sizes_are_refused(tmp_path: Path, offsets: list[list[int]], sentence: str) -> None:
    header = {
        f"t{index}": {"dtype": "F32", "shape": [1], "data_offsets": offset} for index, offset in enumerate(offsets)
    }
    with pytest.raises(LoadError, match=sentence):
        read_safetensors(write(tmp_path / "x.safetensors", header, b"\x00" * 16))


def test_an_absurd_header_length_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(LoadError, match="not a safetensors file"):
        read_safetensors(path)
