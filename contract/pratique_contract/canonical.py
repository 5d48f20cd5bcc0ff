"""Canonical JSON (RFC 8785) and the digests made of it. Same value in, same bytes out, on every machine and in every
field order; a digest is always written ``sha256:<64 hex digits>``."""

import hashlib
import re
from typing import Any, Final

import rfc8785

DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
_DIGEST = re.compile(DIGEST_PATTERN)

# What ``json.loads`` raises for a text that is not JSON, and for one nested more deeply than it can follow.
JSON_ERRORS: Final = (ValueError, RecursionError)


def canonical_json(value: Any) -> bytes:
    """Encode a JSON value (dict, list, str, int, float, bool, None) as RFC 8785 bytes.

    Raises ``rfc8785.CanonicalizationError`` for NaN, infinities and integers outside ±2⁵³: such a value would not
    survive other JSON implementations unchanged, so it must not enter an identity.
    """
    return rfc8785.dumps(value)


def digest_bytes(data: bytes) -> str:
    """Return ``sha256:<hex>`` of the bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def digest_json(value: Any) -> str:
    """Return the digest of a JSON value's canonical form."""
    return digest_bytes(canonical_json(value))


def is_digest(text: str) -> bool:
    """Whether the text is a well-formed ``sha256:`` digest."""
    return _DIGEST.fullmatch(text) is not None


def short_digest(digest: str, *, length: int = 12) -> str:
    """Shorten a digest for tables and messages: the first hex digits, without the algorithm."""
    return digest.removeprefix("sha256:")[:length]
