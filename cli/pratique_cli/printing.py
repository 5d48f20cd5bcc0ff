"""Tables for people, JSON and YAML for programs. Plain text on purpose: it survives pipes, logs and narrow terminals."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

GAP: Final = "   "


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
    print(message, file=sys.stderr, flush=True)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    return " ".join(str(value).split())
