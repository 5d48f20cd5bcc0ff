"""One tar archive at an https:// address, named by its digest."""

from urllib.parse import urlsplit

import httpx

from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.hashing import Checksum
from pratique_server.fetch.http_client import explain_transport, raise_for_status
from pratique_server.fetch.numbers import whole_number
from pratique_server.fetch.remote import Listing, RemoteFile, Request
from pratique_server.fetch.secrets import Credentials, clean_url
from pratique_server.fetch.uris import WebSource


class WebRemote:
    """Credentials: the Secret's bearer token, or its user name and password, or what the URL carries itself."""

    def __init__(self, source: WebSource, *, client: httpx.Client, credentials: Credentials) -> None:
        self._source = source
        self._client = client
        self._headers = {"Authorization": f"Bearer {credentials.token}"} if credentials.token is not None else {}
        self._auth = (
            httpx.BasicAuth(credentials.username, credentials.password or "")
            if credentials.username is not None and credentials.token is None
            else None
        )

    def list(self) -> Listing:
        file = RemoteFile(
            path="archive",
            key=self._source.url,
            size=self._ask_size(),
            version=self._source.digest,
            checksum=Checksum.of_digest(self._source.digest),
            archive=True,
        )
        return Listing(files=(file,), revision=self._source.digest)

    def locate(self, file: RemoteFile) -> Request:
        return Request(url=self._source.url, headers=self._headers, auth=self._auth)

    def check(self, file: RemoteFile, response: httpx.Response) -> None:
        if response.url.scheme != "https":
            raise FetchError(f"{clean_url(self._source.url)} leads to an address without TLS; refused")

    def _ask_size(self) -> int | None:
        """Asked with a GET for one byte: presigned URLs are signed for GET alone. None when the peer does not say."""
        url = self._source.url
        headers = {**self._headers, "Range": "bytes=0-0", "Accept-Encoding": "identity"}
        auth = self._auth if self._auth is not None else httpx.USE_CLIENT_DEFAULT
        try:
            with self._client.stream("GET", url, headers=headers, auth=auth) as response:
                raise_for_status(response, f"archive {urlsplit(url).path}")
                if response.status_code == httpx.codes.PARTIAL_CONTENT:
                    size = response.headers.get("content-range", "").rpartition("/")[2]
                else:
                    size = response.headers.get("content-length", "")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise explain_transport(error, url) from error
        return whole_number(size)
