"""Whole numbers in texts that a peer or another pod wrote. Pure."""

from typing import Final

# Digits of the largest size any file system has; ``int`` itself refuses texts of some thousand digits with an error.
_DIGITS_MAX: Final = 19


def whole_number(text: str) -> int | None:
    """The number, or None: ``isdigit`` alone also takes ``²``, which ``int`` does not."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None
