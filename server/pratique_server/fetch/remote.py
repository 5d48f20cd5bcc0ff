"""What every kind of source offers: a listing, and for each file the request that gets its bytes. The transfer knows nothing else.

A file is a file of the folder, or an archive whose members are. ``version`` is whatever tells one content of a name from the next
(a checksum, an ETag): parts of a file that were fetched under another version are of no use.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from pratique_server.fetch.hashing import Checksum


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One thing to fetch. ``size`` None when the peer does not say; ``key`` is the remote's own name for it."""

    path: str
    key: str
    size: int | None
    version: str
    checksum: Checksum | None = None
    archive: bool = False


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a source holds of what is wanted. ``revision`` is the commit or digest it was listed at."""

    files: tuple[RemoteFile, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """Where a file's bytes are right now; made afresh for every attempt, since signatures and tokens expire."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    auth: httpx.Auth | None = None


class Remote(Protocol):
    """A source that can be listed and read. Every method raises ``FetchError``."""

    def list(self) -> Listing: ...

    def locate(self, file: RemoteFile) -> Request: ...

    def check(self, file: RemoteFile, response: httpx.Response) -> None:
        """Refuse an answer that is about something else than what was asked for."""
        ...
