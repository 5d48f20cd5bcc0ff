"""What keeps a source from being fetched, one class for each reason code; the message is a sentence a person can act on.

FetchError              nothing below explains it (DownloadFailed)
├── UnauthorizedError   the peer wants other credentials
├── NotFoundError       there is no such repository, revision, object or digest
├── RateLimitedError    the peer asked us to come back later; carries how much later
├── TruncatedError      the body ended before its end
├── CorruptError        the bytes are not the ones that were named
├── StalledError        the peer sends too slowly
└── DiskFullError       the cache volume has no room
HaltedError             told to stop: nobody waits for the result
"""

import errno
import os
from pathlib import Path
from typing import ClassVar, Final, Self

from pratique_contract.reasons import Reason

MAKE_ROOM: Final = "remove folders no service uses any more (pratique cache prune)"
DISK_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)


class FetchError(Exception):
    """``transient``: another attempt may succeed, after ``wait_seconds`` if the peer named a time."""

    reason: ClassVar[Reason] = Reason.DOWNLOAD_FAILED

    def __init__(self, message: str, *, transient: bool = False, wait_seconds: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.transient = transient
        self.wait_seconds = wait_seconds

    def about(self, source: str) -> Self:
        """The same for good, with the source it is about, where the sentence does not name it: a service may have several."""
        if source in self.message:
            return type(self)(self.message)
        return type(self)(f"{self.message} (while fetching {source})")


class UnauthorizedError(FetchError):
    reason = Reason.DOWNLOAD_UNAUTHORIZED


class NotFoundError(FetchError):
    reason = Reason.DOWNLOAD_NOT_FOUND


class RateLimitedError(FetchError):
    reason = Reason.DOWNLOAD_RATE_LIMITED


class TruncatedError(FetchError):
    reason = Reason.DOWNLOAD_TRUNCATED


class CorruptError(FetchError):
    reason = Reason.DOWNLOAD_CORRUPT


class StalledError(FetchError):
    reason = Reason.DOWNLOAD_STALLED


class DiskFullError(FetchError):
    reason = Reason.DISK_FULL


class HaltedError(Exception):
    """The process was told to stop, or another part of the same download has failed."""


def explain_os_error(error: OSError, place: str) -> FetchError:
    """A sentence for what the file system answered while something was written at ``place``."""
    if error.errno in DISK_FULL_ERRORS:
        if error.errno == errno.ENOSPC and _has_no_inodes(Path(place)):
            return DiskFullError(
                f"The volume of {place} has room, but may hold no more files (it has no inodes left): {MAKE_ROOM}, "
                "or make a volume with more inodes"
            )
        return DiskFullError(f"The volume of {place} is full: enlarge it, or {MAKE_ROOM}")
    if error.errno == errno.EROFS:
        return FetchError(
            f"{place} cannot be written, and what is there is not complete: the cache volume is mounted read-only; mount it "
            "writable once, or fill it beforehand"
        )
    if error.errno in (errno.EXDEV, errno.EBUSY):
        return FetchError(
            f"{place} cannot get its finished files ({error.strerror}): it is a mount of its own, and they come with one rename; "
            "name a folder below it"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return FetchError(
            f"{place} cannot be written ({error.strerror}): the cache volume must be writable for the pod's user "
            "(set fsGroup, or the folder's owner)"
        )
    return FetchError(f"The file system answered {error.strerror or error} at {place}")


def _has_no_inodes(place: Path) -> bool:
    """Whether the volume counts files and has none left; where nobody can tell, it has."""
    for folder in (place, *place.parents):
        try:
            found = os.statvfs(folder)
        except OSError:
            continue
        return found.f_files > 0 and found.f_favail == 0
    return False
