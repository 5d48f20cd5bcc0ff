"""One repository of an OCI registry: its manifests by digest or tag, and the challenges it answers with."""

import base64
import json
import re
import threading
from collections.abc import Generator
from typing import Final
from urllib.parse import urlsplit

import httpx

from pratique_contract.canonical import JSON_ERRORS
from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.http_client import explain_page, explain_transport, is_page, raise_for_status
from pratique_server.fetch.secrets import Credentials

MANIFEST_TYPES: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEX_TYPES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024  # what registries accept
# A token may run out again before the request that asked for it gets there: its neighbours use it too.
TRIES_MAX: Final = 4
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
# Where the API of a registry is not at the name that people and container engines call it by.
_HOSTS: Final = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class Repository:
    """Plain HTTP only to a registry on this machine, as container engines do."""

    def __init__(self, registry: str, repository: str, *, client: httpx.Client, credentials: Credentials) -> None:
        self._name = f"oci://{registry}/{repository}"
        self._repository = repository
        self._client = client
        scheme = "http" if urlsplit(f"//{registry}").hostname in _LOOPBACK else "https"
        self._base = f"{scheme}://{_HOSTS.get(registry, registry)}/v2/{repository}"
        self.auth = RegistryAuth(registry, repository, client=client, credentials=credentials, base=self._base)

    def blob_url(self, key: str) -> str:
        return f"{self._base}/blobs/{key}"

    def read_manifest(self, reference: str) -> bytes:
        """The bytes under a digest or tag, as the registry sends them: whether they are the ones that were meant is not looked at."""
        url = f"{self._base}/manifests/{reference}"
        headers = {"Accept": ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))}
        too_long = f"The manifest {reference} of {self._name} has more than {MANIFEST_BYTES_MAX} bytes"
        try:
            with self._client.stream("GET", url, headers=headers, auth=self.auth) as response:
                what = f"manifest {reference} of {self._repository}"
                raise_for_status(response, what)
                if is_page(response.headers):
                    raise explain_page(response.url.host, what)
                return _read_body(response, too_long=too_long)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise explain_transport(error, url) from error


class RegistryAuth(httpx.Auth):
    """Answers a registry's challenge: Basic with the Secret's name and password, or a bearer token from the place it names.

    A token is kept for all requests and asked for again when the registry refuses it (they live for minutes). Credentials go to the
    registry and to the token service it names over TLS, never along a redirect.
    """

    requires_response_body = False

    def __init__(
        self, registry: str, repository: str, *, client: httpx.Client, credentials: Credentials, base: str
    ) -> None:
        self._registry, self._repository = registry, repository
        self._client = client
        self._host = httpx.URL(base).host
        self._secure = base.startswith("https:")
        self._basic: str | None = None
        if credentials.username is not None:
            pair = f"{credentials.username}:{credentials.password or ''}"
            self._basic = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._header = f"Bearer {credentials.token}" if credentials.token is not None else None
        self._lock = threading.Lock()

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        for tries_left in reversed(range(TRIES_MAX)):
            header = self._header
            if header is not None:
                request.headers["Authorization"] = header
            response = yield request
            # After the last try a token would be asked for in vain.
            if response.status_code != 401 or response.url.host != self._host or not tries_left:
                return
            if self._answer(response.headers.get("www-authenticate", ""), refused=header) is None:
                return

    def _answer(self, challenge: str, *, refused: str | None) -> str | None:
        """The header that answers the challenge, or None when we have nothing better than what was refused."""
        with self._lock:
            if self._header != refused:  # another connection has just renewed it
                return self._header
            kind, _, rest = challenge.partition(" ")
            fields = dict(_CHALLENGE.findall(rest))
            if kind.lower() == "basic":
                self._header = self._basic
            elif kind.lower() == "bearer" and "realm" in fields:
                self._header = self._ask_for_token(fields)
            else:
                return None
            return self._header if self._header != refused else None

    def _ask_for_token(self, fields: dict[str, str]) -> str:
        realm = fields["realm"]
        if self._secure and not realm.startswith("https:"):
            raise FetchError(f"{self._registry} asks for credentials to be sent without TLS; refused")
        scope = fields.get("scope") or f"repository:{self._repository}:pull"
        parameters = {"scope": scope, **({"service": fields["service"]} if "service" in fields else {})}
        headers = {"Authorization": self._basic} if self._basic is not None else {}
        try:
            with self._client.stream(
                "GET", realm, params=parameters, headers=headers, follow_redirects=False
            ) as response:
                raise_for_status(response, f"a token for {self._repository}")
                too_long = f"The token service of {self._registry} sends more than any token has"
                content = _read_body(response, too_long=too_long)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise explain_transport(error, realm) from error
        try:
            answer = json.loads(content)
            token = answer.get("token") or answer.get("access_token")
        except (*JSON_ERRORS, AttributeError) as error:
            raise FetchError(f"The token service of {self._registry} does not answer with a token") from error
        if not isinstance(token, str) or not token:
            raise FetchError(f"The token service of {self._registry} does not answer with a token")
        return f"Bearer {token}"


def _read_body(response: httpx.Response, *, too_long: str) -> bytes:
    """The whole body of a document; raises ``FetchError`` with the sentence for one that is larger than any."""
    content = bytearray()
    for chunk in response.iter_bytes():
        content += chunk
        if len(content) > MANIFEST_BYTES_MAX:
            raise FetchError(too_long)
    return bytes(content)
