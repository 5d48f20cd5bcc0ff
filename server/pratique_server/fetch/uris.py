"""What a URI and a revision name, taken apart. Pure; raises ``FetchError`` with the form that would have been right.

A source is immutable when its name alone decides its bytes: a commit or a digest. A branch and a bucket without a revision are not, so
a folder that was fetched from them is asked about again unless a release record says what has to be in it.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pratique_contract.canonical import is_digest
from pratique_contract.sources import scheme_of
from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.secrets import clean_url

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9_][\w.-]{0,95})?")
_REVISION: Final = re.compile(r"[\w][\w./-]{0,254}")
_IMAGE: Final = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")
_TAG: Final = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
DEFAULT_BRANCH: Final = "main"


def is_commit(revision: str) -> bool:
    """Whether a hub's revision can never name other bytes."""
    return _COMMIT.fullmatch(revision) is not None


@dataclass(frozen=True)
class HubSource:
    """A model repository of the hub or a mirror of it."""

    repository: str
    revision: str

    @property
    def immutable(self) -> bool:
        return is_commit(self.revision)


@dataclass(frozen=True)
class OciSource:
    """A manifest in a registry, by digest."""

    registry: str
    repository: str
    digest: str
    immutable: bool = True


@dataclass(frozen=True)
class WebSource:
    """A tar archive at a URL, by the digest of the archive. Without one it can only be resolved."""

    url: str
    digest: str | None

    @property
    def immutable(self) -> bool:
        return self.digest is not None


@dataclass(frozen=True)
class BucketSource:
    """Every object under a prefix, which ends with a slash or is empty. ``revision`` is the digest of their list (``bucket.py``)."""

    bucket: str
    prefix: str
    revision: str | None = None

    @property
    def immutable(self) -> bool:
        return self.revision is not None


@dataclass(frozen=True)
class OciTag:
    """What a registry calls by a name that can move: can be resolved, never fetched."""

    registry: str
    repository: str
    tag: str


SourceName = HubSource | OciSource | WebSource | BucketSource


def parse_source(uri: str, revision: str | None) -> SourceName:
    """Take a URI apart."""
    _, scheme_ends, rest = uri.partition("://")
    if not scheme_ends:  # not repeated: what was pasted here in a URI's place may be a secret
        raise FetchError("A source begins with hf://, oci://, https:// or s3://; what was given has none of them")
    match scheme_of(uri):
        case "hf":
            return _parse_hub(rest, revision)
        case "oci":
            return _parse_oci(rest, revision)
        case "https":
            return _parse_web(uri, revision)
        case "s3":
            return _parse_bucket(rest, revision)
    raise FetchError(f"{clean_url(uri)} is not something to fetch; hf://, oci://, https:// and s3:// are")


def parse_movable(uri: str, revision: str | None) -> SourceName | OciTag:
    """As ``parse_source``, and also what names no fixed bytes yet: a tag, an archive whose digest nobody has taken."""
    rest = uri.partition("://")[2]
    match scheme_of(uri):
        case "https" if revision is None:
            return _require_host(WebSource(uri, None))
        case "oci" if not is_digest(rest.partition("@")[2] or revision or ""):
            return _parse_tag(rest, revision)
    return parse_source(uri, revision)


def _parse_hub(rest: str, revision: str | None) -> HubSource:
    repository, _, named = rest.partition("@")
    if named and revision and named != revision:
        raise FetchError(f"hf://{rest} names the revision {named}, and the revision {revision} is given beside it")
    chosen = revision or named or DEFAULT_BRANCH
    if not _REPOSITORY.fullmatch(repository) or not _REVISION.fullmatch(chosen) or ".." in chosen:
        raise FetchError(f"hf://{rest} is not of the form hf://owner/name or hf://owner/name@commit")
    return HubSource(repository, chosen)


def _parse_oci(rest: str, revision: str | None) -> OciSource:
    name, _, named = rest.partition("@")
    if named and revision and named != revision:
        raise FetchError(f"oci://{rest} names the digest {named}, and the revision {revision} is given beside it")
    digest = named or revision or ""
    registry, _, path = name.partition("/")
    repository = path.rpartition(":")[0] or path  # repository:tag@digest is common; the digest decides
    if not is_digest(digest):
        raise FetchError(f"oci://{name} is not named by digest; write oci://registry/repository@sha256:<64 digits>")
    if not registry or "@" in registry or not _IMAGE.fullmatch(repository):
        raise FetchError(f"oci://{rest} is not of the form oci://registry/repository@sha256:<64 digits>")
    return OciSource(registry, repository, digest)


def _parse_tag(rest: str, revision: str | None) -> OciTag:
    registry, _, path = rest.partition("/")
    repository, _, named = path.partition(":")
    if named and revision and named != revision:
        raise FetchError(f"oci://{rest} names the tag {named}, and the revision {revision} is given beside it")
    tag = named or revision or ""
    if not registry or "@" in registry or not _IMAGE.fullmatch(repository) or not _TAG.fullmatch(tag):
        raise FetchError(f"oci://{rest} is not of the form oci://registry/repository:tag, or …@sha256:<64 digits>")
    return OciTag(registry, repository, tag)


def _require_host(source: WebSource) -> WebSource:
    if not urlsplit(source.url).hostname:
        raise FetchError(f"{clean_url(source.url)} names no host")
    return source


def _parse_web(uri: str, revision: str | None) -> WebSource:
    source = _require_host(WebSource(uri, revision))
    if revision is None or not is_digest(revision):
        raise FetchError(
            f"{clean_url(uri)} needs the digest of the archive as its revision, sha256:<64 digits> (sha256sum and "
            "pratique resolve print it)"
        )
    return source


def _parse_bucket(rest: str, revision: str | None) -> BucketSource:
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket):
        raise FetchError(f"s3://{rest} is not of the form s3://bucket/prefix")
    if revision is not None and not is_digest(revision):
        raise FetchError(
            f"s3://{rest} takes as its revision the digest that pratique resolve prints (sha256:<64 digits>), or none"
        )
    return BucketSource(bucket, f"{prefix}/" if prefix else "", revision)
