"""A strict reader of server-sent events, the gate's own: it shares no code with the server that writes them.

In go raw body bytes, out come the payloads of ``data:`` lines. What is accepted is exactly the contract: UTF-8, line feeds,
one ``data: `` line per event closed by an empty line, comment lines between events. Anything else is ``SseError``.
"""

from collections.abc import AsyncIterable, AsyncIterator
from typing import Final

EVENT_BYTES_MAX: Final = 1024 * 1024
STREAM_BYTES_MAX: Final = 16 * 1024 * 1024


class SseError(Exception):
    """The bytes are not such a stream; the message says where."""


class SseReader:
    """Feed it bytes as they come; call ``close`` at the end of the body."""

    def __init__(self) -> None:
        self._buffer = b""
        self._pending: str | None = None
        self._total = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Return the payloads that are complete now."""
        self._total += len(chunk)
        if self._total > STREAM_BYTES_MAX:
            raise SseError(f"the stream is longer than {STREAM_BYTES_MAX} bytes")
        self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > EVENT_BYTES_MAX:
            raise SseError(f"an event is longer than {EVENT_BYTES_MAX} bytes")
        return [payload for line in lines if (payload := self._read_line(line)) is not None]

    def close(self) -> None:
        """Raises ``SseError`` when the body ended inside an event."""
        if self._buffer or self._pending is not None:
            raise SseError("the body ended inside an event")

    def _read_line(self, line: bytes) -> str | None:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SseError(f"a line is not UTF-8: {error.reason}") from error
        if text == "":
            payload, self._pending = self._pending, None
            return payload
        if text.startswith(":"):
            return None
        if not text.startswith("data: ") or text.endswith("\r"):
            raise SseError(f"a line is neither data nor a comment: {text[:80]!r}")
        if self._pending is not None:
            raise SseError("an event has two data lines")
        self._pending = text.removeprefix("data: ")
        return None


async def read_events(body: AsyncIterable[bytes]) -> AsyncIterator[str]:
    """Payloads of a whole body, to its end."""
    reader = SseReader()
    async for chunk in body:
        for payload in reader.feed(chunk):
            yield payload
    reader.close()
