"""Objects under a prefix of a bucket, at any endpoint that speaks S3. ``minio`` lists them and signs the URLs their bytes come from.

Where the store keeps a checksum of the whole object, it is what the bytes are held against; else the ETag, which is the md5 of an object
that was uploaded in one piece; else only a release record can say what they should be.

A bucket has no name for what it holds at one moment, so we make one: the digest of the list of everything under the prefix that a server
could load, each with its size and ETag. A source with that revision is refused when the list is another one.
"""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from urllib.parse import unquote, urlsplit
from xml.etree.ElementTree import ParseError

import certifi
import httpx
import urllib3
from minio import Minio
from minio.credentials.providers import (
    AWSConfigProvider,
    ChainedProvider,
    EnvAWSProvider,
    IamAwsProvider,
    Provider,
    StaticProvider,
)
from minio.error import MinioException, S3Error

from pratique_contract.canonical import digest_json
from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.errors import CorruptError, FetchError, NotFoundError
from pratique_server.fetch.hashing import Algorithm, Checksum
from pratique_server.fetch.http_client import CONNECT_SECONDS, explain_status, explain_transport, split_endpoint
from pratique_server.fetch.proxies import proxy_for
from pratique_server.fetch.remote import Listing, RemoteFile, Request
from pratique_server.fetch.secrets import Credentials, clean_url
from pratique_server.fetch.selection import Wanted, require_usable, select
from pratique_server.fetch.uris import BucketSource

DEFAULT_ENDPOINT: Final = "https://s3.amazonaws.com"
DEFAULT_REGION: Final = "us-east-1"
URL_LIFETIME: Final = timedelta(hours=1)
OBJECTS_MAX: Final = 10_000
# What S3 may keep of a whole object, the strongest first.
CHECKSUMS: Final[tuple[Algorithm, ...]] = ("sha256", "sha1", "crc64nvme", "crc32c", "crc32")
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_STATUS: Final = re.compile(r"(?:status code|Response code:) (\d{3})")
# What minio raises; a body that is no XML comes through as the parser's own error.
_ERRORS: Final = (MinioException, urllib3.exceptions.HTTPError, ValueError, ParseError)
_CLOCK_CODES: Final = ("RequestTimeTooSkewed", "RequestExpired")
_REGION_CODES: Final = ("PermanentRedirect", "AuthorizationHeaderMalformed", "TemporaryRedirect")
# Codes that come with 403 or 400 and mean that the credentials are wrong.
_CREDENTIAL_CODES: Final = (
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
)


@dataclass(frozen=True)
class StoredObject:
    """An object as the listing has it."""

    key: str
    size: int
    etag: str


class BucketRemote:
    """Credentials: the Secret's keys, else the pod's own identity where there is one, else none."""

    def __init__(
        self,
        source: BucketSource,
        wanted: Wanted,
        *,
        download: DownloadSpec,
        credentials: Credentials,
        tls: ssl.SSLContext,
    ) -> None:
        self._source = source
        self._wanted = wanted
        endpoint = download.s3_endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or DEFAULT_ENDPOINT
        parts = split_endpoint(endpoint if "://" in endpoint else f"https://{endpoint}")
        if parts is None or parts.path.strip("/"):
            raise FetchError(
                f"The S3 endpoint {clean_url(endpoint)} is not of the form https://HOST or https://HOST:PORT"
            )
        self._host = parts.netloc.rpartition("@")[2]
        region = download.s3_region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        self._client = Minio(
            self._host,
            secure=parts.scheme == "https",
            # Asking the store for the region needs a right of its own; only the default endpoint has more than one.
            region=region or (None if endpoint == DEFAULT_ENDPOINT else DEFAULT_REGION),
            credentials=_choose_provider(credentials),
            http_client=_make_pool(f"{parts.scheme}://{self._host}", tls=tls, read_seconds=download.stall_seconds),
        )

    def list(self) -> Listing:
        try:
            found = self._list_objects()
            selection = select(found, self._wanted)
            if not found:
                raise NotFoundError(f"{self._name()} holds no object: check the bucket's name and the prefix")
            require_usable(selection, self._wanted, self._name())
            revision = listing_revision(found)
            if self._source.revision not in (None, revision):
                raise CorruptError(
                    f"{self._name()} does not hold what {self._source.revision} names; what it holds is {revision}: an object was "
                    "added, removed or replaced since"
                )
            files = tuple(self._describe(name, found[name]) for name in selection.taken)
        except _ERRORS as error:
            raise self._explain(error) from error
        return Listing(files=files, left_out=selection.left_out, revision=revision)

    def locate(self, file: RemoteFile) -> Request:
        try:
            url = self._client.presigned_get_object(self._source.bucket, file.key, expires=URL_LIFETIME)
        except _ERRORS as error:
            raise self._explain(error) from error
        etag = file.version.partition(" ")[0]
        return Request(url=url, headers={"If-Match": f'"{etag}"'} if etag else {})

    def check(self, file: RemoteFile, response: httpx.Response) -> None:
        """If-Match has made the store refuse another version."""

    def _list_objects(self) -> dict[str, StoredObject]:
        """Every object, by its name below the prefix."""
        found: dict[str, StoredObject] = {}
        entries = self._client.list_objects(self._source.bucket, prefix=self._source.prefix, recursive=True)
        for count, entry in enumerate(entries):  # every one counts, also those that are no files
            name = (entry.object_name or "").removeprefix(self._source.prefix)
            if name and not name.endswith("/"):
                found[name] = StoredObject(entry.object_name or "", entry.size or 0, (entry.etag or "").strip('"'))
            if count >= OBJECTS_MAX:
                raise FetchError(f"{self._name()} holds more than {OBJECTS_MAX} objects: name the model's own prefix")
        return found

    def _describe(self, name: str, found: StoredObject) -> RemoteFile:
        stat = self._client.stat_object(
            self._source.bucket, found.key, extra_headers={"x-amz-checksum-mode": "ENABLED"}
        )
        headers = {str(k).lower(): str(v) for k, v in (stat.metadata or {}).items()}
        etag = (stat.etag or "").strip('"')
        if etag != found.etag:
            raise CorruptError(f"{name} of {self._name()} was replaced while it was being listed", transient=True)
        checksum = choose_checksum(etag, headers)
        version = f"{etag} {checksum}" if checksum is not None else etag
        return RemoteFile(path=name, key=found.key, size=stat.size, version=version, checksum=checksum)

    def _name(self) -> str:
        return f"s3://{self._source.bucket}/{self._source.prefix}"

    def _explain(self, error: Exception) -> FetchError:
        if isinstance(error, S3Error):
            if error.code in _CLOCK_CODES:
                return FetchError(
                    f"{self._host} refuses {self._name()} since its clock and ours differ ({error.code}): set the node's clock"
                )
            if error.code in _REGION_CODES:
                return FetchError(
                    f"{self._host} does not serve {self._name()} from this region ({error.code}): set s3Region to the bucket's own"
                )
            status, headers = error.response.status, dict(error.response.headers)
            if error.code in _CREDENTIAL_CODES:
                status = 403
            elif error.code in ("SlowDown", "TooManyRequests", "RequestLimitExceeded"):
                status = 429
            lowered = {str(k).lower(): str(v) for k, v in headers.items()}
            detail = error.code or ""
            return explain_status(status, self._name(), host=self._host, headers=lowered, detail=detail)
        if isinstance(error, MinioException):
            found = _STATUS.search(str(error))
            status = int(found[1]) if found else 0
            return explain_status(status, self._name(), host=self._host, headers={}, detail="not an answer of S3")
        if isinstance(error, ParseError) or "XML" in str(error):
            return FetchError(
                f"{self._host} does not answer {self._name()} as S3 does ({error}): check s3Endpoint, and whether a proxy or a login "
                "stands in between",
                transient=True,
            )
        if isinstance(error, ValueError):
            return FetchError(f"{self._name()} cannot be read: {error}")
        return explain_transport(error, f"https://{self._host}")


def _make_pool(endpoint: str, *, tls: ssl.SSLContext, read_seconds: float) -> urllib3.PoolManager:
    """Through the environment's proxy, as the bytes themselves go: urllib3 alone does not look there."""
    proxy = proxy_for(endpoint)
    timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds)
    if proxy is None:
        return urllib3.PoolManager(timeout=timeout, retries=False, ssl_context=tls, ca_certs=certifi.where())
    parts = urlsplit(proxy)
    name = unquote(f"{parts.username}:{parts.password or ''}") if parts.username else None
    return urllib3.ProxyManager(
        f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}",
        proxy_headers=urllib3.make_headers(proxy_basic_auth=name) if name else None,
        timeout=timeout,
        retries=False,
        ssl_context=tls,
        ca_certs=certifi.where(),
    )


def listing_revision(found: Mapping[str, StoredObject]) -> str:
    """The digest of what a server could load of these objects. A README that changes is no other model."""
    names = select(found, Wanted(weights=True, code=True)).taken
    return digest_json([[name, found[name].size, found[name].etag] for name in sorted(names)])


def choose_checksum(etag: str, headers: dict[str, str]) -> Checksum | None:
    """The strongest checksum of the whole object that the store gives."""
    prefix = "x-amz-checksum-"
    if headers.get(f"{prefix}type", "FULL_OBJECT") == "FULL_OBJECT":
        for algorithm in CHECKSUMS:
            value = headers.get(f"{prefix}{algorithm}", "")
            if value and "-" not in value:  # "value-N" is a checksum of the checksums of N parts
                return Checksum.of_base64(algorithm, value)
    # Under a key of its own an object's ETag is something else.
    own_key = headers.get("x-amz-server-side-encryption", "AES256") != "AES256" or (
        "x-amz-server-side-encryption-customer-algorithm" in headers
    )
    if _MD5.fullmatch(etag) and not own_key:
        return Checksum("md5", etag)
    return None


def _choose_provider(credentials: Credentials) -> Provider | None:
    if credentials.access_key_id is not None and credentials.secret_access_key is not None:
        return StaticProvider(credentials.access_key_id, credentials.secret_access_key, credentials.session_token)
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return EnvAWSProvider()
    # Set by the platform's webhook when the pod's service account stands for a role.
    if any(name in os.environ for name in ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI")):
        return ChainedProvider([IamAwsProvider(), AWSConfigProvider()])
    return None
