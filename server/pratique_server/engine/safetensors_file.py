"""Read one safetensors file into tensors and hash the very bytes that became those tensors.

The file is read front to back exactly once. Its bytes land in private memory (each tensor aligned as torch would, so
that results do not depend on where in the file it lies), are hashed there and used there. Nothing maps the
file, so a later change on disk cannot reach the model, and a change during the read is part of what the digest
describes. What remains: two files of one model are read one after the other, so a folder replaced in between
gives a mixture; the digests then name that mixture, and the gate refuses it.
"""

import contextlib
import json
import mmap
import os
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

import torch

from pratique_contract.canonical import JSON_ERRORS
from pratique_server.artifacts.files import LoadedFile
from pratique_server.engine.hashing import CHUNK_BYTES, Digest, open_digest
from pratique_server.engine.protocol import LoadError

_DTYPES: Final[dict[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# Formats that mean nothing without scales that lie elsewhere. Read as numbers they would be a silently wrong model.
_SCALED_DTYPES: Final = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "F6_E2M3", "F6_E3M2")
# Where torch itself would put a tensor: results must not depend on where in the file it lies.
_ALIGNMENT: Final = 64
_HEADER_BYTES_MAX: Final = 100 * 1024 * 1024


@dataclass(frozen=True)
class _Entry:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class _HashingReader:
    """Reads exactly what is asked and hands all of it to the digest; a short file is an error that names the file."""

    def __init__(self, file: FileIO, path: Path, digest: Digest) -> None:
        self._file = file
        self._path = path
        self._digest = digest
        self.size = 0

    def read_into(self, view: memoryview) -> None:
        position = 0
        while position < len(view):
            chunk = view[position : position + CHUNK_BYTES]
            count = self._file.readinto(chunk)
            if not count:
                raise LoadError(f"{self._path.name} is truncated: it ends after {self.size} bytes.")
            self._digest.update(chunk[:count])
            position += count
            self.size += count

    def read(self, count: int) -> bytes:
        buffer = bytearray(count)
        self.read_into(memoryview(buffer))
        return bytes(buffer)

    def expect_more(self, count: int) -> None:
        found = os.fstat(self._file.fileno()).st_size
        if found < self.size + count:
            raise LoadError(f"{self._path.name} is truncated: it ends after {found} bytes.")

    def expect_end(self) -> None:
        if self._file.read(1):
            raise LoadError(f"{self._path.name} has bytes after its last tensor; it is not a valid safetensors file.")


def read_safetensors(path: Path, *, overlap: bool = False) -> tuple[dict[str, torch.Tensor], LoadedFile]:
    """Return the file's tensors by name and its entry for the manifest; raises ``LoadError`` with a sentence.

    With ``overlap`` a second thread hashes what this one has read: worth it when a core is free.
    """
    try:
        with path.open("rb", buffering=0) as file, open_digest(overlap=overlap) as digest:
            reader = _HashingReader(file, path, digest)
            entries = _read_header(reader, path)
            arena = _allocate(sum(_aligned(_bytes_of(entry)) for entry in entries))
            tensors = {}
            position = 0
            for entry in entries:
                tensors[entry.name] = _read_tensor(reader, entry, arena[position:])
                position += _aligned(_bytes_of(entry))
            reader.expect_end()
            sha256 = digest.finish()
    except OSError as error:
        raise LoadError(f"{path.name} cannot be read: {error.strerror or error}.") from error
    return tensors, LoadedFile(path=path.name, size=reader.size, sha256=sha256)


def _read_header(reader: _HashingReader, path: Path) -> list[_Entry]:
    length = int.from_bytes(reader.read(8), "little")
    if length > _HEADER_BYTES_MAX:
        raise LoadError(f"{path.name} is not a safetensors file: its header would be {length} bytes long.")
    try:
        header = json.loads(reader.read(length))
        header.pop("__metadata__", None)
        entries = [_parse_entry(name, item) for name, item in header.items()]
    except (*JSON_ERRORS, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise LoadError(f"{path.name} is not a safetensors file: its header cannot be parsed ({error}).") from error
    entries.sort(key=lambda entry: (entry.start, entry.end))
    position = 0
    for entry in entries:
        if entry.start != position:
            raise LoadError(f"{path.name}: tensor {entry.name} does not follow the tensor before it.")
        if entry.end - entry.start != _bytes_of(entry):
            raise LoadError(f"{path.name}: the size of tensor {entry.name} contradicts its shape and type.")
        position = entry.end
    reader.expect_more(position)  # before memory is asked for: a header may promise any amount
    return entries


def _parse_entry(name: str, item: dict[str, Any]) -> _Entry:
    if item["dtype"] in _SCALED_DTYPES:
        raise LoadError(
            f"Tensor {name} is stored as {item['dtype']}, a quantized format that this engine cannot compute; "
            "serve the checkpoint in FP32, FP16 or BF16.",
            part="quantization",
        )
    if item["dtype"] not in _DTYPES:
        raise ValueError(f"tensor {name} has type {item['dtype']}, which this engine does not read")
    shape = tuple(int(size) for size in item["shape"])
    if any(size < 0 for size in shape):
        raise ValueError(f"tensor {name} has a negative dimension")
    start, end = (int(offset) for offset in item["data_offsets"])
    return _Entry(name, _DTYPES[item["dtype"]], shape, start, end)


def _bytes_of(entry: _Entry) -> int:
    count = entry.dtype.itemsize
    for size in entry.shape:
        count *= size
    return count


def _allocate(size: int) -> torch.Tensor:
    """Private memory for a whole file, in huge pages where the kernel has them: the first touch of each small page costs
    half as much as hashing it. The memory goes back when the last tensor in it is gone."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _read_tensor(reader: _HashingReader, entry: _Entry, arena: torch.Tensor) -> torch.Tensor:
    storage = arena[: entry.end - entry.start]
    if storage.numel():
        reader.read_into(storage.numpy().data)
    return storage.view(entry.dtype).reshape(entry.shape)
