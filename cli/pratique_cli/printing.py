"""Tables for people, JSON and YAML for programs. Plain text on purpose: it survives pipes, logs and narrow terminals."""

import json
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
