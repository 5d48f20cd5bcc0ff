"""Say where two texts or two lists of ids part, so that a person can see it. Pure."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final

CONTEXT: Final = 24
TOKENS_BEFORE: Final = 8


def first_difference(expected: Sequence[object], observed: Sequence[object]) -> int | None:
    """Index of the first differing item (a missing one differs), or None when they are equal."""
    for index, (left, right) in enumerate(zip(expected, observed, strict=False)):
        if left != right:
            return index
    return None if len(expected) == len(observed) else min(len(expected), len(observed))


def show_text(text: str, index: int) -> str:
    """The text around an index on one line, the place marked with ▸ and what cannot be seen written out (⏎, \\u200b)."""
    start, end = max(0, index - CONTEXT), index + CONTEXT
    before, after = _visible(text[start:index]), _visible(text[index:end])
    return f"“{'…' if start else ''}{before}▸{after}{'…' if end < len(text) else ''}”"


_SHOWN_AS: Final = {"\n": "⏎", "\t": "⇥"}


def _visible(text: str) -> str:
    """Runs of spaces show as ␣: tables and terminals would fold them, and they are what a template loses most easily. A line feed
    is not written as \\n, which templates hold as two characters of their own."""
    escaped = "".join(_SHOWN_AS.get(c) or (c if c.isprintable() else repr(c)[1:-1]) for c in text)
    return re.sub(" {2,}", lambda run: "␣" * len(run[0]), escaped)


def describe_text_difference(expected: str, observed: str, index: int) -> str:
    """One sentence's middle: which character is there, which was recorded, and both places."""
    return (
        f"character {index} is {describe_character(observed, index)}, {describe_character(expected, index)} was recorded: "
        f"{show_text(observed, index)} instead of {show_text(expected, index)}"
    )


def describe_character(text: str, index: int) -> str:
    """The character at an index with its code point (many look alike, or like nothing), or "the end"."""
    if index >= len(text):
        return "the end"
    character = text[index]
    # A space, a tab and a line feed are known by sight of their escape; others by name.
    name = "" if character.isascii() else f" {unicodedata.name(character, 'unnamed')}"
    return f"{character!r} (U+{ord(character):04X}{name})"


def describe_token(ids: Sequence[int], index: int, decode: Callable[[Sequence[int]], str]) -> str:
    """The id at an index with the text it stands for, or "the end"."""
    return f"{ids[index]} {decode(ids[index : index + 1])!r}" if index < len(ids) else "the end"


def describe_context(ids: Sequence[int], index: int, decode: Callable[[Sequence[int]], str]) -> str:
    """A sentence's end: the text before the token that differs, which is the same on both sides."""
    if index == 0:
        return "at the very beginning"
    start = max(0, index - TOKENS_BEFORE)
    return f"after {'…' if start else ''}{decode(ids[start:index])!r}"


def show_ids(ids: Sequence[int], index: int) -> str:
    """The ids around an index, the place marked with ▸."""
    start, end = max(0, index - 4), index + 4
    shown = [*map(str, ids[start:index]), "▸" + (str(ids[index]) if index < len(ids) else "end")]
    shown += map(str, ids[index + 1 : end])
    return f"[{'… ' if start else ''}{' '.join(shown)}{' …' if end < len(ids) else ''}]"
