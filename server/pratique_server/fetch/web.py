"""One tar archive at an https:// address, named by its digest; or not named yet, and read to learn it."""

from urllib.parse import urlsplit

import httpx

from pratique_server.fetch.errors import CorruptError, FetchError
from pratique_server.fetch.hashing import Checksum
from pratique_server.fetch.http_client import explain_page, explain_transport, is_page, raise_for_status
from pratique_server.fetch.numbers import whole_number
from pratique_server.fetch.remote import Listing, RemoteFile, Request
from pratique_server.fetch.secrets import Credentials, clean_url
from pratique_server.fetch.uris import WebSource


class WebRemote:
    """Credentials: the Secret's bearer token, or its user name and password, or what the URL carries itself."""

    def __init__(self, source: WebSource, *, client: httpx.Client, credentials: Credentials) -> None:
        self._source = source
        self._client = client
        self._content = ""
        self._headers = {"Authorization": f"Bearer {credentials.token}"} if credentials.token is not None else {}
        self._auth = (
            httpx.BasicAuth(credentials.username, credentials.password or "")
            if credentials.username is not None and credentials.token is None
            else None
        )

    def list(self) -> Listing:
        digest = self._source.digest
        file = RemoteFile(
            path="archive",
            key=self._source.url,
            size=self._ask_size(),
            version=digest or "",
            checksum=None if digest is None else Checksum.of_digest(digest),
            archive=True,
        )
        return Listing(files=(file,), revision=digest)

    def locate(self, file: RemoteFile) -> Request:
        return Request(url=self._source.url, headers=self._headers, auth=self._auth)

    def check(self, file: RemoteFile, response: httpx.Response) -> None:
        if response.url.scheme != "https":
            raise FetchError(f"{clean_url(self._source.url)} leads to an address without TLS; refused")
        if self._source.digest is None:
            self._require_same_content(response)

    def _require_same_content(self, response: httpx.Response) -> None:
        """No digest will find out that two answers were of two archives; what the host calls its content must."""
        if _content_name(response) != self._content:
            raise CorruptError(f"{clean_url(self._source.url)} was replaced while it was being read; start again")

    def _ask_size(self) -> int | None:
        """Asked with a GET for one byte: presigned URLs are signed for GET alone. None when the peer does not say."""
        url = self._source.url
        headers = {**self._headers, "Range": "bytes=0-0", "Accept-Encoding": "identity"}
        auth = self._auth if self._auth is not None else httpx.USE_CLIENT_DEFAULT
        try:
            with self._client.stream("GET", url, headers=headers, auth=auth) as response:
                what = f"archive {urlsplit(url).path}"
                raise_for_status(response, what)
                if is_page(response.headers):
                    raise explain_page(response.url.host, what)
                self._content = _content_name(response)
                if response.status_code == httpx.codes.PARTIAL_CONTENT:
                    size = response.headers.get("content-range", "").rpartition("/")[2]
                else:
                    size = response.headers.get("content-length", "")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise explain_transport(error, url) from error
        return whole_number(size)


def _content_name(response: httpx.Response) -> str:
    """What the host calls the content it sends; empty when it has no name for it."""
    return response.headers.get("etag") or response.headers.get("last-modified") or ""
