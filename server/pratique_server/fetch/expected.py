"""What a release record says about the files of a folder. The record was approved or made by a first pod; the source says what it has.

The manifest lists each file as it was hashed when the release was recorded: its bytes, or (for JSON) its value without the fields another
part owns. A file is held against its entry in the same form.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pratique_contract.manifest import FileEntry, ReleaseManifest
from pratique_server.artifacts.files import hash_json_file

JSON_BYTES_MAX: Final = 512 * 1024 * 1024


class Expected:
    """The entries for one folder, by file name; empty when there is no record."""

    def __init__(self, entries: Mapping[str, FileEntry]) -> None:
        self._entries = dict(entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def joined(self, other: "Expected") -> "Expected":
        """For a folder that is both the model's and the tokenizer's."""
        return Expected({**self._entries, **other._entries})

    def first_difference(self, locate: Callable[[str], Path], sha256: Mapping[str, str]) -> str | None:
        """A sentence about the first file that is not the recorded one. ``locate`` says where a file lies, ``sha256`` what was read."""
        for name, entry in self._entries.items():
            observed = _observe(locate, entry, sha256)
            if observed != entry.sha256:
                found = f"is {observed}" if observed is not None else "is not in the source"
                return f"{name} {found}; the release record says {entry.sha256}"
        return None


def expected_of_model(manifest: ReleaseManifest) -> Expected:
    return _of_entries(manifest.model.files)


def expected_of_tokenizer(manifest: ReleaseManifest) -> Expected:
    return _of_entries(manifest.tokenizer.files)


def expected_of_adapter(manifest: ReleaseManifest, name: str) -> Expected:
    found = [adapter.files for adapter in manifest.adapters.adapters if adapter.name == name]
    return _of_entries(found[0] if found else ())


def _of_entries(files: tuple[FileEntry, ...]) -> Expected:
    return Expected({entry.path: entry for entry in files})


def _observe(locate: Callable[[str], Path], entry: FileEntry, sha256: Mapping[str, str]) -> str | None:
    """The file's digest in the entry's form; None when there is no such file."""
    if entry.path not in sha256:
        return None
    path = locate(entry.path)
    if entry.form == "json" and path.stat().st_size <= JSON_BYTES_MAX:
        return hash_json_file(path, entry.omitted).sha256
    return f"sha256:{sha256[entry.path]}"
