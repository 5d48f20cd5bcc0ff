"""From a name that may mean other bytes tomorrow to the one that cannot: a branch to its commit, a tag to its digest, an archive to the
digest of its bytes, a bucket's prefix to the digest of its list.

The source is asked as a fetch would ask it, so what cannot be fetched (no weights but pickles, no rights) is said here already.
"""

import logging
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pratique_contract.canonical import digest_bytes
from pratique_contract.sources import MOUNTED_SCHEMES, scheme_of
from pratique_server.fetch.assembly import SPARE_BYTES
from pratique_server.fetch.errors import DiskFullError, FetchError, explain_os_error
from pratique_server.fetch.fetcher import Fetcher
from pratique_server.fetch.progress import size_text
from pratique_server.fetch.registry import Repository
from pratique_server.fetch.remote import Listing, RemoteFile
from pratique_server.fetch.secrets import clean_url
from pratique_server.fetch.selection import Wanted
from pratique_server.fetch.store import Store
from pratique_server.fetch.targets import Target
from pratique_server.fetch.transfer import Transfer
from pratique_server.fetch.uris import BucketSource, HubSource, OciSource, OciTag, WebSource, parse_movable

# What a manifest takes (the CRD's own rule): credentials belong into a Secret, and the name says how to unpack.
_ARCHIVE_URL: Final = re.compile(r"https://[^/@?# ]+/[^?# ]+\.(?:tar|tar\.gz|tgz)")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """``uri`` and ``revision`` as a manifest takes them, and what would be fetched."""

    uri: str
    revision: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int | None:
        """Bytes to fetch; None when the peer does not say."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def resolve(fetcher: Fetcher, uri: str, revision: str | None, wanted: Wanted) -> Resolved:
    """Ask the source; raises ``FetchError`` and ``HaltedError``."""
    if scheme_of(uri) in MOUNTED_SCHEMES:
        raise FetchError(
            f"{clean_url(uri)} is mounted, not fetched, and has no revision: the release record says what its files are"
        )
    source = parse_movable(uri, revision)
    target = Target(uri=uri, revision=revision, path=Path(), wanted=wanted)
    match source:
        case HubSource():
            return _resolve_hub(fetcher, target, source)
        case WebSource():
            return _resolve_archive(fetcher, target, source)
        case BucketSource():
            return _resolve_bucket(fetcher, target, source)
        case OciTag():
            source = _follow_tag(fetcher, source)
    address = f"oci://{source.registry}/{source.repository}@{source.digest}"
    _, listing = fetcher.ask(target, source)
    return Resolved(uri=address, revision=source.digest, files=listing.files)


def _resolve_hub(fetcher: Fetcher, target: Target, source: HubSource) -> Resolved:
    if "/" not in source.repository:
        raise FetchError(f"hf://{source.repository} has no owner; a manifest takes hf://OWNER/NAME")
    _, listing = fetcher.ask(target, source)
    return Resolved(uri=f"hf://{source.repository}", revision=_named(listing), files=listing.files)


def _follow_tag(fetcher: Fetcher, source: OciTag) -> OciSource:
    """The digest of what the registry sends for the tag, as we count it and not as it says. Of an index it is the index's."""
    repository = Repository(
        source.registry, source.repository, client=fetcher.client, credentials=fetcher.settings.credentials
    )
    content = fetcher.patiently(lambda: repository.read_manifest(source.tag))
    return OciSource(source.registry, source.repository, digest_bytes(content))


def _resolve_bucket(fetcher: Fetcher, target: Target, source: BucketSource) -> Resolved:
    _, listing = fetcher.ask(target, source)
    unproved = [file.path for file in listing.files if file.checksum is None]
    if unproved:
        _log.warning(
            "Without a checksum of the whole object at the store, so that only a release record proves the bytes: %s",
            ", ".join(unproved),
        )
    return Resolved(
        uri=f"s3://{source.bucket}/{source.prefix}".rstrip("/"), revision=_named(listing), files=listing.files
    )


def _resolve_archive(fetcher: Fetcher, target: Target, source: WebSource) -> Resolved:
    if not _ARCHIVE_URL.fullmatch(source.url):
        raise FetchError(
            f"{clean_url(source.url)} is not what a manifest takes: https://HOST/PATH.tar (or .tar.gz, .tgz) without user name "
            "and query; credentials go into the Secret"
        )
    if source.digest is not None:
        _, listing = fetcher.ask(target, source)
        return Resolved(uri=source.url, revision=source.digest, files=listing.files)
    try:
        with tempfile.TemporaryDirectory(prefix="pratique-resolve-") as room:
            return _read_archive(fetcher, target, source, Path(room))
    except OSError as error:
        raise explain_os_error(error, tempfile.gettempdir()) from error


def _read_archive(fetcher: Fetcher, target: Target, source: WebSource, room: Path) -> Resolved:
    """Fetch the whole archive, only to learn its digest."""
    remote, listing = fetcher.ask(target, source)
    store = Store(room / "archive")
    store.open_partial()
    transfer = Transfer(
        remote,
        client=fetcher.client,
        store=store,
        progress=fetcher.progress,
        halt=fetcher.halt,
        limits=fetcher.settings.transfer_limits(),
        check_room=lambda: _require_room(store, 1),
    )
    _require_room(store, transfer.prepare(listing.files))
    (fetched,) = transfer.run(f"Reading {target.name} to take its digest")
    _log.warning("This is the digest of what the host sent now: compare it with the one its publisher names")
    return Resolved(
        uri=source.url, revision=f"sha256:{fetched.sha256}", files=(replace(fetched.file, size=fetched.size),)
    )


def _require_room(store: Store, needed: int) -> None:
    if needed + SPARE_BYTES > store.free_bytes():
        raise DiskFullError(
            f"{size_text(needed)} are still to be written and {tempfile.gettempdir()} has {size_text(store.free_bytes())} left: "
            "set TMPDIR to a folder with more room"
        )


def _named(listing: Listing) -> str:
    if listing.revision is None:
        raise FetchError("The source does not say which revision it is at; this is a bug of ours")
    return listing.revision
