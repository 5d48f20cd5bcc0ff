"""A model repository of the Hugging Face hub, or of a mirror that speaks its protocol.

``huggingface_hub`` lists it and names the URLs; the bytes come through our own transfer (docs/decisions say why), from the same ``resolve``
addresses. The listing carries a digest for every file: sha256 for large ones, git's blob id for small ones.
"""

import os
import ssl
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import httpx
import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url, set_client_factory
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.errors import CorruptError, FetchError, NotFoundError, UnauthorizedError
from pratique_server.fetch.hashing import Checksum
from pratique_server.fetch.http_client import CONNECT_SECONDS, explain_status, explain_transport, split_endpoint
from pratique_server.fetch.proxies import proxy_for
from pratique_server.fetch.remote import Listing, RemoteFile, Request
from pratique_server.fetch.secrets import Credentials, clean_url
from pratique_server.fetch.selection import Wanted, require_usable, select, shown
from pratique_server.fetch.uris import HubSource, is_commit

ENTRIES_MAX: Final = 100_000
COMMIT_HEADER: Final = "x-repo-commit"
# Asked by the library itself again and again, without a word and for as long as Retry-After says: we do that, and say so.
_RETRIED_BY_LIBRARY: Final = (408, 429, 500, 502, 503, 504)


class HubRemote:
    """Lists at one commit: a branch is resolved to the commit it stands at first."""

    def __init__(
        self,
        source: HubSource,
        wanted: Wanted,
        *,
        download: DownloadSpec,
        credentials: Credentials,
        tls: ssl.SSLContext,
    ) -> None:
        self._source = source
        self._wanted = wanted
        self._token = credentials.token
        self._endpoint = (download.hub_endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        if split_endpoint(self._endpoint) is None:
            raise FetchError(
                f"The hub's endpoint {clean_url(self._endpoint)} is not of the form https://HOST or https://HOST:PORT"
            )
        self._api = HfApi(endpoint=self._endpoint, token=self._token or False, user_agent="pratique-fetch")
        self._commit: str | None = source.revision if source.immutable else None
        proxy = proxy_for(self._endpoint)
        set_client_factory(lambda: _make_hub_client(tls, read_seconds=download.stall_seconds, proxy=proxy))

    def list(self) -> Listing:
        try:
            info = self._api.model_info(self._source.repository, revision=self._commit or self._source.revision)
            self._commit = self._require_commit(info.sha)
            if info.siblings is None:
                raise ValueError("it names no files")
            named = {sibling.rfilename for sibling in info.siblings}
            entries = self._api.list_repo_tree(self._source.repository, revision=self._commit, recursive=True)
            found = {entry.path: entry for entry in self._bounded(entries) if isinstance(entry, RepoFile)}
        except (HfHubHTTPError, OSError, HFValidationError) as error:
            raise self._explain(error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FetchError(
                f"{self._endpoint} does not answer as a hub does ({error or type(error).__name__}): check the endpoint, and whether a "
                "proxy or a login stands in between",
                transient=True,
            ) from error
        self._require_whole(found, named)
        selection = select(found, self._wanted)
        require_usable(selection, self._wanted, self._name())
        return Listing(
            files=tuple(self._file(found[name]) for name in selection.taken),
            left_out=selection.left_out,
            revision=self._commit,
        )

    def _require_commit(self, said: str | None) -> str:
        """A branch answered with another name that can move would be printed, and fetched, as if it could not."""
        if not is_commit(said or ""):
            raise FetchError(
                f"{self._endpoint} says that {self._source.revision} of hf://{self._source.repository} stands at {said!r}, which is "
                "no commit"
            )
        if self._commit not in (None, said):
            raise CorruptError(f"{self._endpoint} answered for commit {said}; asked for was {self._commit}")
        return str(said)

    def _require_whole(self, found: Collection[str], named: Collection[str]) -> None:
        """A listing whose last page was lost reads like a smaller repository. (The names without digests are cut for the very largest:
        that they lack a file says nothing.)"""
        lost = sorted(set(named) - set(found))
        if lost:
            raise FetchError(
                f"{self._endpoint} left {len(lost)} of {len(named)} files out of its listing of {self._name()}: {shown(lost)}",
                transient=True,
            )

    def _bounded(self, entries: Iterable[Any]) -> Iterator[Any]:
        """A listing comes page by page, and whoever sends it says whether there is one more."""
        for count, entry in enumerate(entries):
            if count >= ENTRIES_MAX:
                raise FetchError(f"{self._name()} holds more than {ENTRIES_MAX} files and folders")
            yield entry

    def locate(self, file: RemoteFile) -> Request:
        url = hf_hub_url(self._source.repository, file.key, revision=self._commit, endpoint=self._endpoint)
        return Request(url=url, headers={"Authorization": f"Bearer {self._token}"} if self._token else {})

    def check(self, file: RemoteFile, response: httpx.Response) -> None:
        answers = [*response.history, response]
        commits = {answer.headers[COMMIT_HEADER] for answer in answers if COMMIT_HEADER in answer.headers}
        if commits - {self._commit}:
            raise CorruptError(
                f"{self._endpoint} sent {file.path} of commit {', '.join(sorted(commits))}; asked for was {self._commit}"
            )

    def _file(self, entry: RepoFile) -> RemoteFile:
        checksum = Checksum("sha256", entry.lfs.sha256) if entry.lfs is not None else Checksum("git", entry.blob_id)
        size = entry.lfs.size if entry.lfs is not None else entry.size
        return RemoteFile(path=entry.path, key=entry.path, size=size, version=str(checksum), checksum=checksum)

    def _name(self) -> str:
        return f"hf://{self._source.repository} at {self._commit or self._source.revision}"

    def _explain(self, error: Exception) -> FetchError:
        if isinstance(error, _HubStatusError):
            return explain_status(error.status, self._name(), host=self._endpoint, headers=error.headers)
        if isinstance(error, _HubTransportError):
            return explain_transport(error.error, self._endpoint)
        if isinstance(error, RevisionNotFoundError):
            return NotFoundError(
                f"{self._endpoint} has no revision {self._source.revision} of hf://{self._source.repository}: check the commit"
            )
        if isinstance(error, GatedRepoError) and error.response.status_code != 404:
            return UnauthorizedError(
                f"hf://{self._source.repository} is gated: accept its terms with the account of the Secret's token"
            )
        if isinstance(error, RepositoryNotFoundError):
            hint = "the token may not see it" if self._token else "it is private and the Secret has no token"
            return NotFoundError(f"{self._endpoint} has no repository {self._source.repository}, or {hint}")
        if isinstance(error, HfHubHTTPError) and error.response is not None:
            status, headers = error.response.status_code, dict(error.response.headers)
            detail = error.server_message or ""
            return explain_status(status, self._name(), host=self._endpoint, headers=headers, detail=detail)
        if isinstance(error, OfflineModeIsEnabled):
            return FetchError("HF_HUB_OFFLINE is set in the fetching container: it cannot fetch with it")
        if isinstance(error, HFValidationError):
            return FetchError(f"{self._name()} is not a name the hub can have: {error}")
        return explain_transport(error, self._endpoint)


class _HubStatusError(OSError):
    """A status the library would have hidden behind silent retries."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers


class _HubTransportError(OSError):
    """What went wrong below HTTP, for the same purpose."""

    def __init__(self, error: httpx2.HTTPError) -> None:
        super().__init__(str(error))
        self.error = error


class _OneTryClient(httpx2.Client):
    """Raises what the library does not know, so that it does not try again by itself."""

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            response = super().send(request, **options)
        except httpx2.HTTPError as error:
            raise _HubTransportError(error) from error
        if response.status_code in _RETRIED_BY_LIBRARY:
            raise _HubStatusError(response.status_code, {k.lower(): v for k, v in response.headers.items()})
        return response


def _make_hub_client(tls: ssl.SSLContext, *, read_seconds: float, proxy: str | None) -> httpx2.Client:
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=read_seconds)
    return _OneTryClient(verify=tls, timeout=timeout, follow_redirects=True, proxy=proxy, trust_env=False)
