"""One request for the rest of one part: asked for, checked to be what was asked for, written where it belongs.

The answer says whether the peer can send ranges. If not, the first part takes the whole file; bytes that are there already are skipped.
"""

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import httpx

from pratique_server.fetch.errors import CorruptError, FetchError, StalledError, TruncatedError
from pratique_server.fetch.halt import Halt
from pratique_server.fetch.http_client import explain_page, explain_transport, is_page, raise_for_status
from pratique_server.fetch.numbers import whole_number
from pratique_server.fetch.parts import Part
from pratique_server.fetch.progress import Progress
from pratique_server.fetch.remote import Remote, RemoteFile
from pratique_server.fetch.retry import StallRule, StallWatch

_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")


@dataclass
class Job:
    """One file on its way."""

    file: RemoteFile
    name: str
    parts: list[Part]
    descriptor: int = -1
    ranged: bool = False  # the other parts are queued
    again: bool = False  # it was fetched once and was wrong
    saved_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class PartReader:
    """``read`` brings what it can of a part. ``on_ranges`` hears that the peer can send ranges, ``on_bytes`` that bytes were written."""

    def __init__(
        self,
        remote: Remote,
        *,
        client: httpx.Client,
        progress: Progress,
        halt: Halt,
        stall: StallRule,
        on_ranges: Callable[[Job, Part], None],
        on_bytes: Callable[[Job], None],
    ) -> None:
        self._remote = remote
        self._client = client
        self._progress = progress
        self._halt = halt
        self._stall = stall
        self._on_ranges = on_ranges
        self._on_bytes = on_bytes

    def read(self, job: Job, part: Part) -> None:
        """Ask for the rest of the part and write what comes. Raises ``FetchError`` when it is not all of it."""
        request = self._remote.locate(job.file)
        headers = {**request.headers, "Accept-Encoding": "identity"}
        if part.position or (part.end is not None and part.end != job.file.size):
            headers["Range"] = f"bytes={part.position}-{'' if part.end is None else part.end - 1}"
        auth = request.auth if request.auth is not None else httpx.USE_CLIENT_DEFAULT
        try:
            with self._client.stream("GET", request.url, headers=headers, auth=auth) as response:
                if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise _shorter(job)
                raise_for_status(response, job.file.path)
                self._remote.check(job.file, response)
                skip = self._accept(job, part, response)
                self._write_body(job, part, response, skip)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise explain_transport(error, _asked_url(error) or request.url) from error
        if part.end is None:
            part.end = part.position
        elif not part.complete:
            raise TruncatedError(
                f"{job.file.path} ended {part.missing} bytes before its end: check the proxy or mirror in between",
                transient=True,
            )

    def _accept(self, job: Job, part: Part, response: httpx.Response) -> int:
        """Check that the answer is the range that was asked for; how many bytes at its start are there already."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise FetchError(
                f"{response.url.host} sends {job.file.path} compressed, which was not asked for: check the proxy or mirror in between"
            )
        if response.status_code != httpx.codes.PARTIAL_CONTENT:
            _check_length(job, response)
            _become_one_part(job, part)
            return part.position
        found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if found is None or int(found[1]) != part.position:
            raise FetchError(
                f"{response.url.host} sends another range of {job.file.path} than asked for", transient=True
            )
        if found[3] != "*" and job.file.size is not None and int(found[3]) != job.file.size:
            raise _other_size(job, int(found[3]))
        self._on_ranges(job, part)
        return 0

    def _write_body(self, job: Job, part: Part, response: httpx.Response, skip: int) -> None:
        watch = StallWatch(self._stall, time.monotonic())
        for chunk in response.iter_raw():
            self._halt.check()
            now = time.monotonic()
            if watch.stalled(len(chunk), now):
                raise StalledError(
                    f"{response.url.host} sends {job.file.path} too slowly ({self._stall.describe()})",
                    transient=True,
                )
            fresh = memoryview(chunk)[min(skip, len(chunk)) :]
            skip -= len(chunk) - len(fresh)
            if part.missing is not None:
                fresh = fresh[: part.missing]
            _write_all(job.descriptor, fresh, part.position)
            part.done += len(fresh)
            self._progress.add(len(fresh))
            self._on_bytes(job)
            if part.missing == 0:
                return


def _check_length(job: Job, response: httpx.Response) -> None:
    length = whole_number(response.headers.get("content-length", ""))
    if is_page(response.headers) and (length is None or length != job.file.size):
        raise explain_page(response.url.host, job.file.path)
    if length is not None and job.file.size is not None and length != job.file.size:
        raise _other_size(job, length)


def _other_size(job: Job, size: int) -> FetchError:
    return CorruptError(
        f"{job.file.path} has {size} bytes where it is fetched from; the listing says {job.file.size}",
        transient=True,
    )


def _shorter(job: Job) -> FetchError:
    return CorruptError(f"{job.file.path} is shorter than the listing says ({job.file.size} bytes)", transient=True)


def _become_one_part(job: Job, part: Part) -> None:
    """The peer sends the whole file, whatever was asked for: let this connection take all of it, if it is the first."""
    with job.lock:
        if part is job.parts[0] and len(job.parts) > 1 and not any(other.done for other in job.parts[1:]):
            part.end = job.parts[-1].end
            del job.parts[1:]


def _asked_url(error: Exception) -> str | None:
    """The address that was being asked: after a redirect not the one we began with."""
    try:
        return str(error.request.url) if isinstance(error, httpx.RequestError) else None
    except RuntimeError:  # httpx, when it knows of no request
        return None


def _write_all(descriptor: int, content: memoryview, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
