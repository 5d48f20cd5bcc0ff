"""Digests of files in every form a provider gives them: one pass over the bytes for all of them.

``git`` is git's blob id (sha1 over a header with the size and the bytes), which the hub gives for small files; ``md5`` and
the CRCs are S3's. Only sha256 is evidence against a hostile peer; the others find what a network or disk did.
"""

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

Algorithm = Literal["sha256", "git", "sha1", "md5", "crc64nvme", "crc32c", "crc32"]

_CHUNK_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class Checksum:
    """``value`` is lower-case hexadecimal without a prefix."""

    algorithm: Algorithm
    value: str

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.value}"

    @classmethod
    def of_digest(cls, digest: str) -> "Checksum":
        """From ``sha256:<hex>``."""
        return cls("sha256", digest.removeprefix("sha256:"))

    @classmethod
    def of_base64(cls, algorithm: Algorithm, value: str) -> "Checksum":
        """From S3's base64 form; raises ``ValueError`` for what is none."""
        return cls(algorithm, base64.b64decode(value, validate=True).hex())


class _Hasher(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class _Crc:
    """``advance`` takes bytes and the value so far."""

    def __init__(self, advance: Callable[[bytes, int], int], *, digits: int) -> None:
        self._advance, self._digits, self._value = advance, digits, 0

    def update(self, data: bytes, /) -> None:
        self._value = self._advance(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:0{self._digits}x}"


def hash_file(
    path: Path, algorithms: Iterable[Algorithm], *, on_bytes: Callable[[int], None] = lambda _: None
) -> tuple[int, dict[Algorithm, str]]:
    """Size and digests of a file, read once from the disk; ``on_bytes`` hears of each piece and may raise to stop."""
    size = path.stat().st_size
    hashers = {algorithm: _make(algorithm, size) for algorithm in {"sha256", *algorithms}}
    count = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            for hasher in hashers.values():
                hasher.update(chunk)
            count += len(chunk)
            on_bytes(len(chunk))
    return count, {algorithm: hasher.hexdigest() for algorithm, hasher in hashers.items()}


def _make(algorithm: Algorithm, size: int) -> _Hasher:
    match algorithm:
        case "sha256":
            return hashlib.sha256()
        case "git":
            hasher = hashlib.sha1(usedforsecurity=False)
            hasher.update(f"blob {size}\0".encode())
            return hasher
        case "sha1":
            return hashlib.sha1(usedforsecurity=False)
        case "md5":
            return hashlib.md5(usedforsecurity=False)
        case "crc32":
            return _Crc(zlib.crc32, digits=8)
        case "crc32c" | "crc64nvme":
            # Here and not above: only objects of a bucket have it, and it takes a fifth of a second.
            from awscrt import checksums

            return _Crc(checksums.crc32c, digits=8) if algorithm == "crc32c" else _Crc(checksums.crc64nvme, digits=16)
