"""From a target to a finished folder: look, wait for whoever is at it, fetch, verify, publish.

A finished folder is always read back first (that warms the page cache for the load that follows) and used without the network when it is
whole. What is found damaged loses its final name at once and is repaired; what a bucket or branch has replaced since is fetched anew.
"""

import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import httpx

from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.assembly import Assembly, tell_left_out
from pratique_server.fetch.errors import FetchError, HaltedError, explain_os_error
from pratique_server.fetch.finished import Finding, inspect_folder
from pratique_server.fetch.halt import Halt
from pratique_server.fetch.http_client import make_client, make_tls
from pratique_server.fetch.lock import FolderLock, LockTimes
from pratique_server.fetch.oci import OciRemote
from pratique_server.fetch.progress import Progress, size_text
from pratique_server.fetch.remote import Listing, Remote
from pratique_server.fetch.retry import Attempts, RetryPolicy, StallRule
from pratique_server.fetch.secrets import Credentials, Redactor
from pratique_server.fetch.selection import shown
from pratique_server.fetch.store import Receipt, Store
from pratique_server.fetch.targets import Target
from pratique_server.fetch.transfer import TransferLimits
from pratique_server.fetch.uris import BucketSource, HubSource, OciSource, SourceName, parse_source
from pratique_server.fetch.web import WebRemote

HASH_THREADS_MAX: Final = 8
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about the how. ``limits`` and ``lock_times`` are smaller in tests."""

    download: DownloadSpec = field(default_factory=DownloadSpec)
    credentials: Credentials = field(default_factory=Credentials)
    limits: TransferLimits | None = None
    lock_times: LockTimes = field(default_factory=LockTimes)
    hash_threads: int = min(HASH_THREADS_MAX, len(os.sched_getaffinity(0)))

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


@dataclass
class Fetcher:
    """Fetches targets one after the other. Raises ``FetchError`` and ``HaltedError``, and no other error of the world."""

    settings: Settings
    progress: Progress
    halt: Halt
    _tls: ssl.SSLContext = field(init=False)
    client: httpx.Client = field(init=False)
    _redactor: Redactor = field(init=False)

    def __post_init__(self) -> None:
        self._tls = make_tls(self.settings.credentials)
        self.client = make_client(self.settings.credentials, self.settings.download, tls=self._tls)
        self._redactor = Redactor(self.settings.credentials.secret_values())

    def close(self) -> None:
        self.client.close()

    def fetch(self, target: Target) -> None:
        """Return when the target's folder is complete and verified."""
        source = parse_source(target.uri, target.revision)
        try:
            self._fetch(target, source)
        except OSError as error:
            raise explain_os_error(error, str(target.path)).about(target.name) from error
        except FetchError as error:
            raise error.about(target.name) from error

    def _fetch(self, target: Target, source: SourceName) -> None:
        store = Store(target.path)
        store.require_ours()
        while not self._fetch_once(target, source, store):
            _log.warning("Another pod has taken over fetching %s", target.name)

    def _fetch_once(self, target: Target, source: SourceName, store: Store) -> bool:
        """Look, wait, fetch; False when the lock was lost meanwhile, and with it the right to go on."""
        while True:
            finding = self._inspect(target, store)
            if self._is_finished(target, source, finding):
                return True
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
        except HaltedError:
            if self.halt.stopped or not lock.lost:
                raise
            return False
        finally:
            lock.release()
        return True

    def _is_finished(self, target: Target, source: SourceName, finding: Finding | None) -> bool:
        """Whether the folder can be used as it is, asking nobody."""
        if finding is None or finding.damage or not finding.receipt.wanted.covers(target.wanted):
            return False
        difference = finding.difference(target)
        if source.immutable and difference is not None:
            # The bytes are what the source's name says; if the record wants others, no download can help.
            raise target.not_recorded(difference)
        if difference is not None or not (source.immutable or target.expected):
            return False
        _log.info("Found complete: %s at %s, %s", target.name, target.path, _size(finding.receipt))
        return True

    def _inspect(self, target: Target, store: Store) -> Finding | None:
        store.touch()
        return inspect_folder(
            target, store, progress=self.progress, check=self.halt.check, threads=self.settings.hash_threads
        )

    def _say(self, text: str) -> None:
        if text != self.progress.line():
            self.progress.say(text)

    def ask(self, target: Target, source: SourceName) -> tuple[Remote, Listing]:
        """What the source holds of what is wanted; nothing is fetched."""
        remote = self._make_remote(target, source)
        self.progress.say(f"Asking what {target.name} holds")
        listing = self.patiently(remote.list)
        tell_left_out(target, listing.left_out)
        return remote, listing

    def patiently(self, ask: Callable[[], T]) -> T:
        """Ask a question of a peer again and again, as the rules for retries say."""
        attempts = Attempts(self.settings.transfer_limits().retry)
        while True:
            try:
                return ask()
            except FetchError as error:
                pause = attempts.after(error)
                message = self._redactor.clean(error.message)
                _log.warning("Trying again in %.1f s: %s: %s", pause, error.reason, message)
                self.progress.say(f"Trying again in {pause:.1f} s: {error.reason}: {message}", told=True)
                self.halt.wait(pause)

    # Under the lock

    def _fetch_locked(
        self, target: Target, source: SourceName, store: Store, finding: Finding | None, lock: FolderLock
    ) -> None:
        wanted = target.wanted if finding is None else target.wanted.union(finding.receipt.wanted)
        goal = replace(target, wanted=wanted)
        if finding is not None and finding.damage:
            self._set_aside(store, finding, f"was damaged: {shown(finding.damage)}")
            finding = None
        remote, listing = self.ask(goal, source)
        if finding is not None and not source.immutable:
            covered = finding.receipt.wanted.covers(wanted)
            if not _still_holds(listing, finding.receipt, all_of_it=covered):
                self._set_aside(store, finding, "was replaced at the source")
            elif covered:
                self._require_recorded(goal, finding)
                _log.info("Found unchanged at the source: %s", goal.name)
                return
        assembly = Assembly(
            target=goal,
            store=store,
            lock=lock,
            remote=remote,
            client=self.client,
            progress=self.progress,
            limits=self.settings.transfer_limits(),
            cache_bytes_max=self.settings.download.cache_bytes_max,
        )
        receipt = assembly.complete(listing)
        _log.info("Fetched %s to %s: %d files, %s", goal.name, goal.path, len(receipt.files), _size(receipt))

    def _require_recorded(self, target: Target, finding: Finding) -> None:
        difference = finding.difference(target)
        if difference is not None:
            raise target.not_recorded(difference)

    def _set_aside(self, store: Store, finding: Finding, why: str) -> None:
        _log.warning("Repairing %s: it %s", store.path, why)
        store.set_aside(finding.intact)

    def _make_remote(self, target: Target, source: SourceName) -> Remote:
        download, credentials = self.settings.download, self.settings.credentials
        # The two with a library of their own import it only when it is asked for: each is a quarter or more of what this process imports.
        match source:
            case HubSource():
                from pratique_server.fetch.hub import HubRemote

                return HubRemote(source, target.wanted, download=download, credentials=credentials, tls=self._tls)
            case OciSource():
                return OciRemote(source, target.wanted, client=self.client, credentials=credentials)
            case BucketSource():
                from pratique_server.fetch.bucket import BucketRemote

                return BucketRemote(source, target.wanted, download=download, credentials=credentials, tls=self._tls)
        return WebRemote(source, client=self.client, credentials=credentials)


def _still_holds(listing: Listing, receipt: Receipt, *, all_of_it: bool) -> bool:
    """Whether the source still has what the folder was fetched from; and nothing else, unless more is wanted now."""
    theirs = {file.path: file.version for file in listing.files}
    ours = {entry.path: entry.version for entry in receipt.files}
    return ours == theirs if all_of_it else ours.items() <= theirs.items()


def _size(receipt: Receipt) -> str:
    return size_text(sum(entry.size for entry in receipt.files))
