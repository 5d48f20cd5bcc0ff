"""Tables for people, JSON and YAML for programs. Plain text on purpose: it survives pipes, logs and narrow terminals."""

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

GAP: Final = "   "
# Control characters but line feed and tab, whatever turns the direction of writing, and half surrogate pairs.
_STEERING: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


class Format(StrEnum):
    """How a command prints its result."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


def emit(value: Any, form: Format) -> None:
    """Print a JSON value in a format for programs."""
    if form is Format.YAML:
        print(to_yaml(value), end="")
    else:
        print(json.dumps(value, indent=2, ensure_ascii=False))


def to_yaml(*documents: Any) -> str:
    """YAML text, key order kept."""
    import yaml

    return str(yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=2**31))


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell; None is shown as ``-``."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = (GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(lines)


class _Reader(io.FileIO):
    """A descriptor whose other end may be closed: what is written then is dropped."""

    gone = False
    dropped = False

    def write(self, data: Any, /) -> int:
        if _Reader.dropped:
            return len(memoryview(data).cast("B"))
        try:
            return super().write(data)
        except BrokenPipeError:
            _Reader.gone = True
            return len(memoryview(data).cast("B"))


def outlive_the_reader() -> None:
    """Let ``head`` or a pager end before us: a command whose answer is its exit code goes on to it."""
    standard: io.TextIOWrapper | None = sys.__stdout__
    if standard is None or sys.stdout is not standard:  # closed, or somebody else's
        return
    standard.flush()
    raw = _Reader(os.dup(standard.fileno()), "w")
    sys.stdout = io.TextIOWrapper(
        # Unbuffered, as Python itself makes it then.
        raw if standard.write_through else io.BufferedWriter(raw),
        encoding=standard.encoding,
        errors=standard.errors,
        line_buffering=standard.line_buffering,
        write_through=standard.write_through,
    )


def drop_output() -> None:
    """What is left in the buffer would be tried again, and complained of, while the interpreter ends."""
    _Reader.dropped = True


def is_read() -> bool:
    """Whether somebody still reads what is printed, as far as was noticed."""
    return not _Reader.gone


def note(message: str) -> None:
    """Progress and remarks: beside the result, never in it."""
    print(plain(message), file=sys.stderr, flush=True)


def say(text: str, *, end: str = "\n") -> None:
    """A result for people."""
    print(plain(text), end=end)


def plain(text: str) -> str:
    """The text without what would steer the terminal: a record, a pod or a model may say anything, and a person is to approve what
    stands there, not what was drawn over it."""
    return _STEERING.sub("\ufffd", text)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    return " ".join(str(value).split())
