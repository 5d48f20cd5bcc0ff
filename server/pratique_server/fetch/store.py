"""Folders on the cache volume: the final one, the partial one beside it, and the receipt that says what a finished folder holds.

A fetch works in ``.NAME.partial``; when everything in it is verified, it gets its final name with one rename. A folder that was damaged
loses its final name before anything else happens, and what is still right in it is kept for the repair. A folder that turns out to need
more files (a tokenizer's that is now wanted with weights) gets them one by one, its receipt last.
"""

import contextlib
import hashlib
import json
import os
import shutil
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from pydantic import ValidationError, field_validator

from pratique_contract.model import ContractModel
from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.parts import Part, save_parts
from pratique_server.fetch.selection import Wanted, is_safe

RECEIPT_FILE: Final = ".pratique-fetch.json"
STATE_FOLDER: Final = ".state"
ARCHIVES_FOLDER: Final = ".archives"
_RECEIPT_BYTES_MAX: Final = 16 * 1024 * 1024


class ReceiptFile(ContractModel):
    """One file as it was read back after the fetch. ``version`` is the source's own mark of this content."""

    path: str
    size: int
    sha256: str
    version: str = ""

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        """A receipt lies on a shared volume: whoever wrote it, what it names is read, kept and written beside."""
        if not is_safe(path):
            raise ValueError("the name leads out of the folder, or hides something")
        return path


class Receipt(ContractModel):
    """What a finished folder holds and what it was fetched for. ``uri`` carries no credentials; ``key`` stands for the exact one."""

    version: int = 1
    key: str
    uri: str
    revision: str | None
    weights: bool
    code: bool
    files: tuple[ReceiptFile, ...]

    @property
    def wanted(self) -> Wanted:
        return Wanted(weights=self.weights, code=self.code)


def source_key(uri: str, revision: str | None) -> str:
    return hashlib.sha256(json.dumps([uri, revision]).encode()).hexdigest()


class Store:
    """Everything about one final folder's place on the disk. Methods raise ``OSError``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(f".{path.name}.partial")
        self.lock = path.with_name(f".{path.name}.lock")

    def read_receipt(self) -> Receipt | None:
        """The finished folder's receipt, or None when there is no finished folder."""
        try:
            with (self.path / RECEIPT_FILE).open("rb") as file:
                return Receipt.model_validate_json(file.read(_RECEIPT_BYTES_MAX))
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            return None

    def touch(self) -> None:
        """Leave the time at which somebody looked at the finished folder, for whoever removes what nobody uses; best effort."""
        with contextlib.suppress(OSError):  # none there yet, or a read-only volume
            os.utime(self.path / RECEIPT_FILE)

    def require_ours(self) -> None:
        """Refuse to fetch into a folder that holds something else. An empty one is welcome: a kubelet may have made it."""
        if self.path.is_symlink():
            raise FetchError(f"{self.path} is a link, and a fetch replaces folders as a whole; name the folder itself")
        if not self.path.exists() or self.read_receipt() is not None:
            return
        if self.path.is_mount():  # found out by the last rename, it would cost the whole download each time
            raise FetchError(
                f"{self.path} is a mount of its own, and a finished folder comes there with one rename; name a folder below it"
            )
        if not self.path.is_dir():
            raise FetchError(f"{self.path} is a file; name the folder to fill")
        if any(self.path.iterdir()):
            raise FetchError(
                f"{self.path} holds files that no fetch has put there; name an empty folder, or remove them"
            )

    def data_file(self, name: str) -> Path:
        """Where a file is put together; its folder exists afterwards."""
        path = self.partial / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def state_file(self, name: str) -> Path:
        path = self.partial / STATE_FOLDER / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def open_partial(self) -> None:
        """The folder to work in, without a link in it: the volume is shared, and a link leads our writes and removals elsewhere."""
        if self.partial.is_symlink():
            self.partial.unlink()
        self.partial.mkdir(parents=True, exist_ok=True)
        for root, folders, names in os.walk(self.partial):
            for name in (*names, *folders):
                if (path := Path(root) / name).is_symlink():
                    path.unlink()

    def set_aside(self, keep: tuple[ReceiptFile, ...]) -> None:
        """Take the final name from the finished folder and make it the start of the next one; only ``keep`` stays."""
        shutil.rmtree(self.partial, ignore_errors=True)
        self.path.rename(self.partial)
        kept = {entry.path: entry for entry in keep}
        for name in list(list_files(self.partial)):
            if name not in kept:
                (self.partial / name).unlink()
        for name, entry in kept.items():
            part = Part(0, entry.size, entry.size)
            save_parts(self.state_file(name), version=entry.version, size=entry.size, parts=[part])

    def drop_others(self, names: set[str]) -> None:
        """Remove what earlier attempts left in the partial folder and this one does not want."""
        for name in list(list_files(self.partial, skip=(STATE_FOLDER, ARCHIVES_FOLDER))):
            if name not in names:
                (self.partial / name).unlink()

    def publish(self, receipt: Receipt) -> None:
        """Give the verified files their final name. What is only on its way to the disk is written out first."""
        names = [entry.path for entry in receipt.files]
        text = json.dumps(receipt.to_json_value(), indent=1, sort_keys=True)
        (self.partial / RECEIPT_FILE).write_text(text + "\n", encoding="utf-8")
        for name in [*(n for n in names if (self.partial / n).exists()), RECEIPT_FILE]:
            _sync(self.partial / name)
        # Last, and quick: whoever is killed before this goes on where it was, after it fetches again.
        for name in (STATE_FOLDER, ARCHIVES_FOLDER):
            shutil.rmtree(self.partial / name, ignore_errors=True)
        if self.path.is_dir() and any(self.path.iterdir()):
            self._add_to_finished(names)
        else:
            self.partial.rename(self.path)
        _sync(self.path)
        _sync(self.path.parent)

    def _add_to_finished(self, names: list[str]) -> None:
        for name in [*(n for n in names if (self.partial / n).exists()), RECEIPT_FILE]:
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.partial / name).replace(target)
        shutil.rmtree(self.partial, ignore_errors=True)

    def free_bytes(self) -> int:
        """What an unprivileged process may still write on this volume."""
        return shutil.disk_usage(self.path.parent).free

    def used_bytes(self) -> int:
        """What the whole cache volume holds, as the kubelet counts it: allocated blocks."""
        total = 0
        for folder, _, names in os.walk(self.path.parent):
            for name in names:
                try:
                    total += os.lstat(Path(folder) / name).st_blocks * 512
                except FileNotFoundError:  # another pod is at work beside us
                    continue
        return total

    def require_apart(self, names: Iterable[str]) -> None:
        """Refuse a volume that would make one file out of two, as those do that do not tell upper from lower case: whichever was written
        last would lie there under both names."""
        alike: dict[str, list[str]] = {}
        for name in sorted(names):
            alike.setdefault(unicodedata.normalize("NFC", name).casefold(), []).append(name)
        for first, second in (pair for group in alike.values() for pair in pairwise(group)):
            if self._takes_for_one(first, second):
                raise FetchError(
                    f"{first} and {second} are one file on the cache volume, whose file system does not tell such names apart; use a "
                    "volume that does"
                )

    def _takes_for_one(self, first: str, second: str) -> bool:
        """Tried out, since nothing tells."""
        folder = self.partial / STATE_FOLDER / ".probe"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / first.replace("/", "_")).touch()
        same = (folder / second.replace("/", "_")).exists()
        shutil.rmtree(folder)
        return same

    def neighbours(self) -> list[str]:
        """Other folders on the volume, finished or begun and left, for a person who has to make room."""
        finished = (receipt.parent for receipt in self.path.parent.glob(f"*/{RECEIPT_FILE}"))
        begun = self.path.parent.glob(".*.partial")
        return sorted(folder.name for folder in (*finished, *begun) if folder not in (self.path, self.partial))


def list_files(folder: Path, *, skip: tuple[str, ...] = ()) -> Iterator[str]:
    """Names of everything but folders below ``folder``, the receipt excepted."""
    for root, folders, names in os.walk(folder):
        relative = Path(root).relative_to(folder)
        if relative == Path():
            folders[:] = [name for name in folders if name not in skip]
        # A link to a folder is listed among the folders and is not walked into.
        links = [name for name in folders if (Path(root) / name).is_symlink()]
        for name in (*names, *links):
            path = (relative / name).as_posix()
            if path != RECEIPT_FILE:
                yield path


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        # Some network file systems cannot sync a folder; what is missing after a crash, the hash check finds.
        if path.is_file():
            raise
    finally:
        os.close(descriptor)
