"""Hash bytes as they are read: in the reading thread, or one step behind it in a thread of its own.

SHA-256 of one file cannot be split, so a single file is at best as quick as one core hashes. What can be saved is everything else:
with ``overlap`` the next chunk is read and copied while the last one is hashed (both release the interpreter's lock). The
digest always covers the caller's own memory, never a second copy of it.
"""

import hashlib
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

# Small enough to be still in the processor's cache when it is hashed.
CHUNK_BYTES: Final = 1024 * 1024
# How many chunks the reader may be ahead: more would only cool the cache.
CHUNKS_AHEAD_MAX: Final = 4


class Digest(Protocol):
    """SHA-256 in the order of the calls. What was handed over must not change until ``finish`` has returned."""

    def update(self, chunk: memoryview) -> None: ...

    def finish(self) -> str:
        """``sha256:`` and the digest of everything so far; the last call."""
        ...


class InlineDigest:
    """Hashes at once."""

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()

    def update(self, chunk: memoryview) -> None:
        self._hasher.update(chunk)

    def finish(self) -> str:
        return f"sha256:{self._hasher.hexdigest()}"


class TrailingDigest:
    """Hashes in a thread of its own; ``update`` waits only when the reader is ``CHUNKS_AHEAD_MAX`` ahead."""

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()
        self._chunks: queue.Queue[memoryview | None] = queue.Queue(CHUNKS_AHEAD_MAX)
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def update(self, chunk: memoryview) -> None:
        self._chunks.put(chunk)

    def finish(self) -> str:
        self.close()
        return f"sha256:{self._hasher.hexdigest()}"

    def close(self) -> None:
        """End the thread once it has hashed what it was given; idempotent."""
        if self._thread.is_alive():
            self._chunks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            self._hasher.update(chunk)


@contextmanager
def open_digest(*, overlap: bool) -> Iterator[Digest]:
    """A digest whose thread, if it has one, is gone afterwards, whatever happened in between."""
    if not overlap:
        yield InlineDigest()
        return
    digest = TrailingDigest()
    try:
        yield digest
    finally:
        digest.close()
