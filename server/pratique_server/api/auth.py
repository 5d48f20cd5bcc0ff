"""API keys: read from a mounted Secret, compared in constant time, read again when the files change.

``path`` is a folder (one file per tenant: its name is the tenant, each line a key) or a file (a JSON object of tenant to key or
keys, or one key per line for the tenant "default"). A missing or empty source admits nobody.
"""

import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

RELOAD_SECONDS: Final = 1.0
DEFAULT_TENANT: Final = "default"
_log = logging.getLogger(__name__)


class ApiKeys:
    """Keeps digests, not keys: all have one length, so a comparison tells nothing about a key."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._checked_at = float("-inf")
        self._stamp: Any = None
        self._tenants: tuple[tuple[bytes, str], ...] = ()

    def tenant_of(self, key: str) -> str | None:
        """The tenant whose key this is, or None. Looks at every known key, whether or not one matched already."""
        self._reload_when_due()
        digest, found = _digest(key), None
        for known, tenant in self._tenants:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found

    def _reload_when_due(self) -> None:
        now = self._clock()
        if now - self._checked_at < RELOAD_SECONDS:
            return
        self._checked_at = now
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            self._tenants = tuple((_digest(key), tenant) for tenant, key in _read(self._path))
        except (OSError, ValueError):
            # Keys that were revoked must not live on because their successor cannot be read.
            self._tenants = ()
            _log.exception("Could not read the API keys; nobody is admitted until they can be read")
        self._stamp = stamp
        _log.info("Loaded %d API keys", len(self._tenants))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _files(path: Path) -> list[Path]:
    """A mounted Secret's real files hide behind dotted links; the visible names are the entries."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if not file.name.startswith(".") and file.is_file())
    return [path]


def _stamp(path: Path) -> Any:
    try:
        return [(str(file), (stat := file.stat()).st_ino, stat.st_mtime_ns, stat.st_size) for file in _files(path)]
    except OSError:
        return "unreadable"


def _read(path: Path) -> Iterator[tuple[str, str]]:
    for file in _files(path):
        text = file.read_text(encoding="utf-8")
        if path.is_dir():
            yield from ((file.name, key) for key in _lines(text))
        elif text.lstrip().startswith("{"):
            yield from _read_object(json.loads(text))
        else:
            yield from ((DEFAULT_TENANT, key) for key in _lines(text))


def _read_object(value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for tenant, keys in value.items():
        for key in keys if isinstance(keys, list) else [keys]:
            if not isinstance(key, str) or not key:
                raise ValueError(f"The keys of tenant {tenant} are not strings")
            yield tenant, key


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
