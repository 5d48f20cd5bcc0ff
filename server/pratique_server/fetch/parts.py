"""The parts of one file: which bytes are on the disk, kept beside the data so that a killed container goes on where it was.

A small file is one part; a large one has up to ``PARTS_MAX``, so that several connections can work on it. The state is written after the
data and may lag behind it, never the other way round but for a node that loses power; what then is wrong, the digest finds.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PART_BYTES_MIN: Final = 64 * 1024 * 1024
PARTS_MAX: Final = 64


@dataclass
class Part:
    """Bytes ``start`` to ``end`` (exclusive; None: to the end, wherever it is), of which the first ``done`` are there. ``finished``
    when whoever fetched it has let go of it."""

    start: int
    end: int | None
    done: int = 0
    finished: bool = False

    @property
    def position(self) -> int:
        return self.start + self.done

    @property
    def missing(self) -> int | None:
        return None if self.end is None else self.end - self.position

    @property
    def complete(self) -> bool:
        return self.missing == 0


def plan_parts(size: int | None, *, part_bytes: int = PART_BYTES_MIN) -> list[Part]:
    """Cut a file into parts of equal length, at least ``part_bytes`` each."""
    if size is None:
        return [Part(0, None)]
    length = max(part_bytes, -(-size // PARTS_MAX))
    return [Part(start, min(start + length, size)) for start in range(0, size, length)] or [Part(0, 0)]


def save_parts(path: Path, *, version: str, size: int | None, parts: list[Part]) -> None:
    """Replace the state file as a whole."""
    value = {
        "version": version,
        "size": size,
        "parts": [[part.start, part.end, part.done] for part in parts],
    }
    partial = path.with_name(f"{path.name}.new")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.replace(path)


def load_parts(path: Path, *, version: str, size: int | None, data: Path) -> list[Part] | None:
    """The state of an earlier attempt at the same content, or None when there is none that can be trusted."""
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
        if value["version"] != version or value["size"] != size:
            return None
        parts = [_read_part(*numbers) for numbers in value["parts"]]
        return parts if parts and _fits(parts, size, os.stat(data).st_size) else None  # noqa: PTH116
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _read_part(start: Any, end: Any, done: Any) -> Part:
    for number in (start, done, 0 if end is None else end):
        if not isinstance(number, int) or number < 0:
            raise ValueError("not a number of bytes")
    return Part(start, end, done)


def _fits(parts: list[Part], size: int | None, on_disk: int) -> bool:
    """Whether the parts cover the file without gap and no part claims bytes the data file does not have."""
    expected = 0
    for part in parts:
        if part.start != expected or (part.done and part.position > on_disk):
            return False
        if part.end is None:
            return len(parts) == 1 and size is None
        if not part.start <= part.position <= part.end:
            return False
        expected = part.end
    return size is None or expected == size
