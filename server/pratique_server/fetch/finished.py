"""Read a finished folder back: is every file still what the receipt says, and is nothing there that no fetch has put there?"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.hashing import hash_file
from pratique_server.fetch.progress import Progress
from pratique_server.fetch.store import Receipt, ReceiptFile, Store, list_files, source_key
from pratique_server.fetch.targets import Target


@dataclass(frozen=True)
class Finding:
    """What a finished folder looks like: ``damage`` in words, and the files that are still what the receipt says."""

    receipt: Receipt
    intact: tuple[ReceiptFile, ...]
    damage: tuple[str, ...]

    def difference(self, target: Target) -> str | None:
        """The first file that is not the one the release record names."""
        digests = {entry.path: entry.sha256 for entry in self.receipt.files}
        return target.expected.first_difference(lambda name: target.path / name, digests)


def inspect_folder(
    target: Target, store: Store, *, progress: Progress, check: Callable[[], None], threads: int
) -> Finding | None:
    """Hash every file; None when there is no finished folder. ``check`` may raise to stop."""
    receipt = store.read_receipt()
    if receipt is None:
        return None
    if receipt.key != source_key(target.uri, target.revision):
        raise FetchError(f"{target.path} holds {receipt.uri} at {receipt.revision}, which is not {target.name}")
    total = sum(entry.size for entry in receipt.files)
    progress.start(f"Checking {target.name} on the cache volume", total=total)

    def count(size: int) -> None:
        check()
        progress.add(size)

    with ThreadPoolExecutor(threads) as pool:
        problems = list(pool.map(lambda entry: _problem(store, entry, count), receipt.files))
    known = {entry.path for entry in receipt.files}
    strange = [f"{name} was not fetched" for name in list_files(store.path) if name not in known]
    intact = tuple(entry for entry, problem in zip(receipt.files, problems, strict=True) if problem is None)
    return Finding(receipt, intact, tuple([p for p in problems if p is not None] + strange))


def _problem(store: Store, entry: ReceiptFile, count: Callable[[int], None]) -> str | None:
    path = store.path / entry.path
    if path.is_symlink() or not path.is_file():
        return f"{entry.path} is missing"
    try:
        size, digests = hash_file(path, (), on_bytes=count)
    except FileNotFoundError:
        return f"{entry.path} is missing"
    if size != entry.size or digests["sha256"] != entry.sha256:
        return f"{entry.path} is sha256:{digests['sha256']} ({size} bytes); fetched was sha256:{entry.sha256}"
    return None
