"""Put together what a listing names, in the partial folder, and give it its final name when all of it is verified."""

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import httpx

from pratique_server.artifacts.files import is_pickle
from pratique_server.fetch.archive import extract, settle
from pratique_server.fetch.errors import MAKE_ROOM, DiskFullError, FetchError
from pratique_server.fetch.hashing import hash_file
from pratique_server.fetch.lock import FolderLock
from pratique_server.fetch.progress import Progress, size_text
from pratique_server.fetch.remote import Listing, Remote
from pratique_server.fetch.secrets import clean_url
from pratique_server.fetch.selection import Selection, require_usable, shown
from pratique_server.fetch.store import ARCHIVES_FOLDER, Receipt, ReceiptFile, Store, source_key
from pratique_server.fetch.targets import Target
from pratique_server.fetch.transfer import FetchedFile, Transfer, TransferLimits

STAGING_FOLDER: Final = f"{ARCHIVES_FOLDER}/staged"
# File systems want some room of their own; a volume filled to the last byte makes trouble for everybody on it.
SPARE_BYTES: Final = 16 * 1024 * 1024
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """Everything one folder is put together with, under its lock. ``cache_bytes_max`` is a limit the file system does not know."""

    target: Target
    store: Store
    lock: FolderLock
    remote: Remote
    client: httpx.Client
    progress: Progress
    limits: TransferLimits
    cache_bytes_max: int | None

    def complete(self, listing: Listing) -> Receipt:
        """Fetch what is missing, verify, publish. A finished folder that is there gets what it lacks."""
        target, store = self.target, self.store
        store.open_partial()
        store.require_apart(file.path for file in listing.files if not file.archive)
        finished = store.read_receipt()
        have = {} if finished is None else {entry.path: entry for entry in finished.files}
        fetched = self._fetch(listing, have)
        plain = [
            ReceiptFile(path=item.file.path, size=item.size, sha256=item.sha256, version=item.file.version)
            for item in fetched
            if not item.file.archive
        ]
        archives = sorted((item for item in fetched if item.file.archive), key=lambda item: item.file.path)
        unpacked, left_out = self._unpack(archives)
        if both := {entry.path for entry in unpacked} & {entry.path for entry in plain}:
            raise FetchError(f"{target.name} holds {shown(sorted(both))} twice: in an archive and as a file of its own")
        new = {entry.path: entry for entry in (*unpacked, *plain)}
        store.drop_others(set(new))
        every = {**have, **new}
        require_usable(Selection(tuple(every), {**listing.left_out, **left_out}), target.wanted, target.name)
        self._compare_with_release(listing, every, set(new))
        receipt = Receipt(
            key=source_key(target.uri, target.revision),
            uri=clean_url(target.uri),
            revision=listing.revision or target.revision,
            weights=target.wanted.weights,
            code=target.wanted.code,
            files=tuple(every[name] for name in sorted(every)),
        )
        self.lock.require_held()
        store.publish(receipt)
        return receipt

    def _fetch(self, listing: Listing, have: Mapping[str, ReceiptFile]) -> list[FetchedFile]:
        files = [file for file in listing.files if file.archive or file.path not in have]
        transfer = Transfer(
            self.remote,
            client=self.client,
            store=self.store,
            progress=self.progress,
            halt=self.lock.halt,
            limits=self.limits,
            check_room=lambda: self._require_room(1),
        )
        missing = transfer.prepare(files)
        # An archive needs about its own size once more when it is unpacked.
        self._require_room(missing + sum(file.size or 0 for file in files if file.archive))
        return transfer.run(f"Downloading {self.target.name}")

    def _require_room(self, needed: int) -> None:
        """Refuse what cannot fit before its first byte."""
        room = self._room()
        if needed == 0 or needed + SPARE_BYTES <= room:
            return
        others = self.store.neighbours()
        hint = f" (it also holds {shown(others)})" if others else ""
        raise DiskFullError(
            f"{size_text(needed)} of {self.target.name} are still to be written and the cache volume has "
            f"{size_text(max(0, room))} left{hint}: enlarge it, or {MAKE_ROOM}"
        )

    def _room(self) -> int:
        """Bytes that may still be written."""
        free = self.store.free_bytes()
        return free if self.cache_bytes_max is None else min(free, self.cache_bytes_max - self.store.used_bytes())

    def _unpack(self, archives: list[FetchedFile]) -> tuple[list[ReceiptFile], dict[str, str]]:
        """Take the model's files out of the archives and hash what was written; what is left out, with the reason."""
        if not archives:
            return [], {}
        store, halt = self.store, self.lock.halt
        staged = store.partial / STAGING_FOLDER
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        self.progress.start(f"Unpacking {self.target.name}", total=None)

        def on_bytes(count: int) -> None:
            halt.check()
            self.progress.add(count)

        left_out: dict[str, str] = {}
        for item in archives:
            path = store.partial / ARCHIVES_FOLDER / item.file.path
            left_out |= extract(path, staged, room=self._room, on_bytes=on_bytes)
        pickles = [name for name in left_out if is_pickle(name)]
        names, others = settle(staged, store.partial, self.target.wanted, self.target.name, pickles=pickles)
        left_out |= others
        tell_left_out(self.target, left_out)
        entries = []
        for name in names:
            size, digests = hash_file(store.partial / name, (), on_bytes=lambda _: halt.check())
            entries.append(ReceiptFile(path=name, size=size, sha256=digests["sha256"]))
        return entries, left_out

    def _compare_with_release(self, listing: Listing, every: Mapping[str, ReceiptFile], new: set[str]) -> None:
        """Hold the files against the release record: the new ones where they were fetched to, the others in the finished folder."""
        store = self.store
        difference = self.target.expected.first_difference(
            lambda name: (store.partial if name in new else store.path) / name,
            {name: entry.sha256 for name, entry in every.items()},
        )
        if difference is None:
            return
        for file in listing.files:
            # Only the record says what these should be, so they may have been broken on the way: the next attempt fetches them anew.
            if file.checksum is None and file.path in new:
                store.state_file(file.path).unlink(missing_ok=True)
        raise self.target.not_recorded(difference)


def tell_left_out(target: Target, left_out: Mapping[str, str]) -> None:
    """Say what of the source is not fetched, and why, once for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in left_out.items():
        reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        level = logging.WARNING if any(is_pickle(name) for name in names) else logging.INFO
        _log.log(level, "Left out of %s, since %s: %s", target.name, why, shown(names))
