"""From a target to a finished folder: look, wait for whoever is at it, fetch, verify, publish.

A finished folder is always read back first (that warms the page cache for the load that follows) and used without the network when it is
whole. What is found damaged loses its final name at once and is repaired; what a bucket or branch has replaced since is fetched anew.
"""

import logging
import shutil
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

import httpx

from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.archive import extract, settle
from pratique_server.fetch.bucket import BucketRemote
from pratique_server.fetch.errors import CorruptError, DiskFullError, FetchError, explain_os_error
from pratique_server.fetch.halt import Halt
from pratique_server.fetch.hashing import hash_file
from pratique_server.fetch.http_client import make_client, make_tls
from pratique_server.fetch.hub import HubRemote
from pratique_server.fetch.lock import FolderLock, LockTimes
from pratique_server.fetch.oci import OciRemote
from pratique_server.fetch.progress import Progress, size_text
from pratique_server.fetch.remote import Listing, Remote
from pratique_server.fetch.retry import Attempts, RetryPolicy, StallRule
from pratique_server.fetch.secrets import Credentials, Redactor, clean_url
from pratique_server.fetch.selection import is_pickle, require_usable, select, shown
from pratique_server.fetch.store import ARCHIVES_FOLDER, Receipt, ReceiptFile, Store, list_files, source_key
from pratique_server.fetch.targets import Target
from pratique_server.fetch.transfer import FetchedFile, Transfer, TransferLimits
from pratique_server.fetch.uris import BucketSource, HubSource, OciSource, SourceName, parse_source
from pratique_server.fetch.web import WebRemote

STAGING_FOLDER: Final = f"{ARCHIVES_FOLDER}/staged"
# File systems want some room of their own; a volume filled to the last byte makes trouble for everybody on it.
SPARE_BYTES: Final = 16 * 1024 * 1024
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about the how. ``limits`` and ``lock_times`` are smaller in tests."""

    download: DownloadSpec = field(default_factory=DownloadSpec)
    credentials: Credentials = field(default_factory=Credentials)
    limits: TransferLimits | None = None
    lock_times: LockTimes = field(default_factory=LockTimes)
    hash_threads: int = 4

    def transfer_limits(self) -> TransferLimits:
        if self.limits is not None:
            return self.limits
        download = self.download
        stall = StallRule(
            seconds=download.stall_seconds, bytes_min=int(download.bytes_per_second_min * download.stall_seconds)
        )
        return TransferLimits(
            connections=download.connections, stall=stall, retry=RetryPolicy(attempts=download.attempts)
        )


@dataclass(frozen=True)
class Finding:
    """What a finished folder looks like: ``damage`` in words, and the files that are still what the receipt says."""

    receipt: Receipt
    intact: tuple[ReceiptFile, ...]
    damage: tuple[str, ...]

    @property
    def sha256(self) -> dict[str, str]:
        return {entry.path: entry.sha256 for entry in self.receipt.files}


@dataclass
class Fetcher:
    """Fetches targets one after the other. Raises ``FetchError`` and ``HaltedError``, and no other error of the world."""

    settings: Settings
    progress: Progress
    halt: Halt
    _tls: ssl.SSLContext = field(init=False)
    _client: httpx.Client = field(init=False)
    _redactor: Redactor = field(init=False)

    def __post_init__(self) -> None:
        self._tls = make_tls(self.settings.credentials)
        self._client = make_client(self.settings.credentials, self.settings.download, tls=self._tls)
        self._redactor = Redactor(self.settings.credentials.secret_values())

    def close(self) -> None:
        self._client.close()

    def fetch(self, target: Target) -> None:
        """Return when the target's folder is complete and verified."""
        source = parse_source(target.uri, target.revision)
        try:
            self._fetch(target, source)
        except OSError as error:
            raise explain_os_error(error, str(target.path)) from error

    def _fetch(self, target: Target, source: SourceName) -> None:
        store = Store(target.path)
        store.require_ours()
        while True:
            finding = self._inspect(target, store)
            if self._is_finished(target, source, finding):
                return
            seen = None if finding is None else finding.receipt
            lock = FolderLock(store.lock, halt=self.halt, describe=self.progress.line, times=self.settings.lock_times)
            # A receipt that is new to us is worth a look of our own: many pods may look at once.
            if lock.acquire(give_up=lambda: store.read_receipt() != seen, say=self._say):  # noqa: B023 - used up in this turn
                break
        try:
            if store.read_receipt() != seen:
                finding = self._inspect(target, store)
            if not self._is_finished(target, source, finding):
                self._fetch_locked(target, source, store, finding, lock)
        finally:
            lock.release()

    def _is_finished(self, target: Target, source: SourceName, finding: Finding | None) -> bool:
        """Whether the folder can be used as it is, asking nobody."""
        if finding is None or finding.damage or not finding.receipt.wanted.covers(target.wanted):
            return False
        difference = self._differs(target, finding)
        if source.immutable and difference is not None:
            # The bytes are what the source's name says; if the record wants others, no download can help.
            raise _not_approved(target, difference)
        if difference is not None or not (source.immutable or target.expected):
            return False
        _log.info("Found complete: %s at %s, %s", _name(target), target.path, _size(finding.receipt))
        return True

    def _differs(self, target: Target, finding: Finding) -> str | None:
        return target.expected.first_difference(lambda name: target.path / name, finding.sha256)

    def _inspect(self, target: Target, store: Store) -> Finding | None:
        """Read a finished folder back; None when there is none."""
        receipt = store.read_receipt()
        if receipt is None:
            return None
        key = source_key(target.uri, target.revision)
        if receipt.key != key:
            raise FetchError(f"{target.path} holds {receipt.uri} at {receipt.revision}, which is not {_name(target)}")
        total = sum(entry.size for entry in receipt.files)
        self.progress.start(f"Checking {_name(target)} on the cache volume", total=total)
        with ThreadPoolExecutor(self.settings.hash_threads) as pool:
            problems = list(pool.map(lambda entry: self._problem(store, entry), receipt.files))
        known = {entry.path for entry in receipt.files}
        strange = [f"{name} was not fetched" for name in list_files(store.path) if name not in known]
        intact = tuple(entry for entry, problem in zip(receipt.files, problems, strict=True) if problem is None)
        return Finding(receipt, intact, tuple([p for p in problems if p is not None] + strange))

    def _problem(self, store: Store, entry: ReceiptFile) -> str | None:
        path = store.path / entry.path
        if path.is_symlink() or not path.is_file():
            return f"{entry.path} is missing"
        try:
            size, digests = hash_file(path, (), on_bytes=self._count)
        except FileNotFoundError:
            return f"{entry.path} is missing"
        if size != entry.size or digests["sha256"] != entry.sha256:
            return f"{entry.path} is sha256:{digests['sha256']} ({size} bytes); fetched was sha256:{entry.sha256}"
        return None

    def _count(self, count: int) -> None:
        self.halt.check()
        self.progress.add(count)

    def _say(self, text: str) -> None:
        if text != self.progress.line():
            self.progress.say(text)

    # Under the lock

    def _fetch_locked(
        self, target: Target, source: SourceName, store: Store, finding: Finding | None, lock: FolderLock
    ) -> None:
        wanted = target.wanted if finding is None else target.wanted.union(finding.receipt.wanted)
        goal = replace(target, wanted=wanted)
        if finding is not None and finding.damage:
            self._set_aside(store, finding, f"was damaged: {shown(finding.damage)}")
            finding = None
        remote = self._make_remote(goal, source)
        listing = self._list(goal, remote)
        if finding is not None and not source.immutable:
            if not _is_unchanged(listing, finding.receipt):
                self._set_aside(store, finding, "was replaced at the source")
            elif finding.receipt.wanted.covers(wanted):
                difference = self._differs(goal, finding)
                if difference is not None:
                    raise _not_approved(goal, difference)
                _log.info("Found unchanged at the source: %s", _name(goal))
                return
        self._complete(goal, store, remote, listing, lock)

    def _set_aside(self, store: Store, finding: Finding, why: str) -> None:
        _log.warning("Repairing %s: it %s", store.path, why)
        store.set_aside(finding.intact)

    def _make_remote(self, target: Target, source: SourceName) -> Remote:
        download, credentials = self.settings.download, self.settings.credentials
        match source:
            case HubSource():
                return HubRemote(source, target.wanted, download=download, credentials=credentials, tls=self._tls)
            case OciSource():
                return OciRemote(source, target.wanted, client=self._client, credentials=credentials)
            case BucketSource():
                return BucketRemote(source, target.wanted, download=download, credentials=credentials, tls=self._tls)
        return WebRemote(source, client=self._client, credentials=credentials)

    def _list(self, target: Target, remote: Remote) -> Listing:
        """Ask what there is, again and again as the rules for retries say."""
        self.progress.say(f"Asking what {_name(target)} holds")
        attempts = Attempts(self.settings.transfer_limits().retry)
        while True:
            try:
                listing = remote.list()
            except FetchError as error:
                pause = attempts.after(error)
                message = self._redactor.clean(error.message)
                _log.warning("Trying again in %.1f s: %s: %s", pause, error.reason, message)
                self.progress.say(f"Trying again in {pause:.0f} s: {message}")
                self.halt.wait(pause)
            else:
                _tell_left_out(target, listing.left_out)
                return listing

    def _complete(self, target: Target, store: Store, remote: Remote, listing: Listing, lock: FolderLock) -> None:
        store.open_partial()
        have = {entry.path: entry for entry in _receipt_files(store)}
        files = [file for file in listing.files if file.archive or file.path not in have]
        transfer = Transfer(
            remote,
            client=self._client,
            store=store,
            progress=self.progress,
            halt=lock.halt,
            limits=self.settings.transfer_limits(),
        )
        missing = transfer.prepare(files)
        self._require_room(store, missing, archives=sum(file.size or 0 for file in files if file.archive))
        fetched = transfer.run(f"Downloading {_name(target)}")
        entries = [
            ReceiptFile(path=item.file.path, size=item.size, sha256=item.sha256, version=item.file.version)
            for item in fetched
            if not item.file.archive
        ]
        archives = sorted((item for item in fetched if item.file.archive), key=lambda item: item.file.path)
        entries += self._unpack(target, store, archives, lock.halt)
        if not archives:
            store.drop_others({entry.path for entry in entries})
        every = sorted({**have, **{entry.path: entry for entry in entries}}.values(), key=lambda entry: entry.path)
        self._verify_release(target, store, listing, every, {entry.path for entry in entries})
        receipt = Receipt(
            key=source_key(target.uri, target.revision),
            uri=clean_url(target.uri),
            revision=listing.revision or target.revision,
            weights=target.wanted.weights,
            code=target.wanted.code,
            files=tuple(every),
        )
        lock.require_held()
        store.publish(receipt)
        _log.info("Fetched %s to %s: %d files, %s", _name(target), target.path, len(every), _size(receipt))

    def _require_room(self, store: Store, missing: int, *, archives: int) -> None:
        """Refuse what cannot fit before its first byte; an archive needs about its own size once more when it is unpacked."""
        needed = missing + archives + SPARE_BYTES
        free = store.free_bytes()
        limit = self.settings.download.cache_bytes_max
        if limit is not None:
            free = min(free, limit - store.used_bytes())
        if needed <= free or missing + archives == 0:
            return
        others = store.neighbours()
        hint = f" (it also holds {shown(others)})" if others else ""
        raise DiskFullError(
            f"{size_text(missing + archives)} are still to be written and the cache volume has "
            f"{size_text(max(0, free))} left{hint}: enlarge it, or remove folders no service uses any more"
        )

    def _unpack(self, target: Target, store: Store, archives: list[FetchedFile], halt: Halt) -> list[ReceiptFile]:
        """Take the model's files out of the archives and hash what was written."""
        if not archives:
            return []
        staged = store.partial / STAGING_FOLDER
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        self.progress.start(f"Unpacking {_name(target)}", total=None)

        def on_bytes(count: int) -> None:
            halt.check()
            self.progress.add(count)

        left_out: dict[str, str] = {}
        for item in archives:
            path = store.partial / ARCHIVES_FOLDER / item.file.path
            left_out |= extract(path, staged, room=self._room(store), on_bytes=on_bytes)
        names, others = settle(
            staged,
            store.partial,
            target.wanted,
            _name(target),
            pickles=[name for name in left_out if is_pickle(name)],
        )
        _tell_left_out(target, {**left_out, **others})
        require_usable(select(names, target.wanted), target.wanted, _name(target))
        entries = []
        for name in names:
            size, digests = hash_file(store.partial / name, (), on_bytes=lambda _: halt.check())
            entries.append(ReceiptFile(path=name, size=size, sha256=digests["sha256"]))
        store.drop_others(set(names))
        return entries

    def _room(self, store: Store) -> Callable[[], int]:
        limit = self.settings.download.cache_bytes_max
        if limit is None:
            return store.free_bytes
        return lambda: min(store.free_bytes(), limit - store.used_bytes())

    def _verify_release(
        self, target: Target, store: Store, listing: Listing, every: list[ReceiptFile], new: set[str]
    ) -> None:
        """Hold the files against the release record: the new ones where they were fetched to, the others in the finished folder."""
        difference = target.expected.first_difference(
            lambda name: (store.partial if name in new else store.path) / name,
            {entry.path: entry.sha256 for entry in every},
        )
        if difference is None:
            return
        for file in listing.files:
            # Only the record says what these should be, so they may have been broken on the way: the next attempt fetches them anew.
            if file.checksum is None and file.path in new:
                store.state_file(file.path).unlink(missing_ok=True)
        raise _not_approved(target, difference)


def _not_approved(target: Target, difference: str) -> CorruptError:
    return CorruptError(f"{_name(target)} is not the approved release: {difference}")


def _receipt_files(store: Store) -> tuple[ReceiptFile, ...]:
    receipt = store.read_receipt()
    return () if receipt is None else receipt.files


def _is_unchanged(listing: Listing, receipt: Receipt) -> bool:
    """Whether the source still holds what the folder was fetched from; it may hold more, where more is wanted now."""
    theirs = {file.path: file.version for file in listing.files}
    return all(theirs.get(entry.path) == entry.version for entry in receipt.files)


def _name(target: Target) -> str:
    revision = target.revision
    if not revision or revision in target.uri:
        return clean_url(target.uri)
    return f"{clean_url(target.uri)} at {revision[: 12 + len('sha256:') * revision.startswith('sha256:')]}"


def _size(receipt: Receipt) -> str:
    return size_text(sum(entry.size for entry in receipt.files))


def _tell_left_out(target: Target, left_out: Mapping[str, str]) -> None:
    """Say what of the source is not fetched, and why, once for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in left_out.items():
        reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        level = logging.WARNING if any(is_pickle(name) for name in names) else logging.INFO
        _log.log(level, "Left out of %s, since %s: %s", _name(target), why, shown(names))
