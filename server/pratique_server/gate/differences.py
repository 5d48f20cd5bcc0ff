"""Say where two texts or two lists of ids part, so that a person can see it. Pure."""

from collections.abc import Sequence
from typing import Final

CONTEXT: Final = 24


def first_difference(expected: Sequence[object], observed: Sequence[object]) -> int | None:
    """Index of the first differing item (a missing one differs), or None when they are equal."""
    for index, (left, right) in enumerate(zip(expected, observed, strict=False)):
        if left != right:
            return index
    return None if len(expected) == len(observed) else min(len(expected), len(observed))


def show_text(text: str, index: int) -> str:
    """The text around an index, the place marked with ▸."""
    start, end = max(0, index - CONTEXT), index + CONTEXT
    before, after = text[start:index], text[index:end]
    return f"{'…' if start else ''}{before!r}▸{after!r}{'…' if end < len(text) else ''}"


def describe_character(text: str, index: int) -> str:
    """The character at an index with its code point, or "the end"."""
    return f"{text[index]!r} (U+{ord(text[index]):04X})" if index < len(text) else "the end"


def show_ids(ids: Sequence[int], index: int) -> str:
    """The ids around an index, the place marked with ▸."""
    start, end = max(0, index - 4), index + 4
    shown = [*map(str, ids[start:index]), "▸" + (str(ids[index]) if index < len(ids) else "end")]
    shown += map(str, ids[index + 1 : end])
    return f"[{'… ' if start else ''}{' '.join(shown)}{' …' if end < len(ids) else ''}]"
