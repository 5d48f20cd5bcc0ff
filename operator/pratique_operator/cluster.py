"""The API server as the operator sees it: eight verbs on plain JSON objects. ``Cluster`` is the test seam; ``ApiCluster`` talks to a
real server through the synchronous Kubernetes client, so it is called from threads, and every call has a timeout.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

from pratique_contract import constants
from pratique_contract.canonical import JSON_ERRORS
from pratique_operator.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    OperatorError,
    RejectedError,
    UnavailableError,
)
from pratique_operator.kinds import Kind

Manifest = dict[str, Any]

_BEYOND_ASCII: Final = re.compile("[\x7f-\uffff]")
LIST_PAGE: Final = 500
PROXY_BODY_BYTES_MAX: Final = 1024 * 1024
CONNECT_SECONDS_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 32
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
UNTYPED_PATCH: Final = "failed to create typed patch object"
_ERRORS: Final[Mapping[int, type[ApiError]]] = {
    400: RejectedError,
    403: RejectedError,
    404: NotFoundError,
    409: ConflictError,
    422: RejectedError,
}


class Cluster(Protocol):
    """What the operator does with an API server. All methods raise ``ApiError`` or ``UnavailableError``."""

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """The object, or None when it does not exist."""
        ...

    def version(self, kind: Kind, namespace: str, name: str) -> str | None:
        """Only the object's resource version, whatever its size; None when it does not exist."""
        ...

    def list(self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = "") -> list[Manifest]:
        """All objects with these labels and fields; ``namespace`` None means all namespaces."""
        ...

    def create(self, kind: Kind, namespace: str, body: Manifest) -> None:
        """Create an object; ``ConflictError`` when it exists."""
        ...

    def apply(self, kind: Kind, namespace: str, body: Manifest) -> Manifest:
        """Server-side apply of the full intent with our field manager, and the object as it is then."""
        ...

    def patch(
        self, kind: Kind, namespace: str, name: str, body: Manifest, *, subresource: str | None = None
    ) -> Manifest:
        """JSON merge patch, with the precondition that ``body`` carries in ``metadata.resourceVersion``."""
        ...

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """Delete exactly this object, not one that took its name; its dependents follow in the background."""
        ...

    def read_pod(self, namespace: str, pod: str, port: int, path: str, *, timeout_seconds: float) -> str:
        """Body of an HTTP GET to a pod through the API server."""
        ...

    def close(self) -> None:
        """Refuse every further call with ``UnavailableError``. From any thread, also while calls are under way."""
        ...


def encode_body(body: Manifest) -> bytes:
    """JSON that a YAML reader takes too, since the API server reads an apply as YAML: it refuses escaped surrogate pairs (an
    emoji as JSON usually writes it) and bare control characters, so the first stay as they are and the rest is escaped."""
    return _BEYOND_ASCII.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(body, ensure_ascii=False)).encode()


@dataclass(frozen=True)
class Connection:
    """Address and credentials of a connection."""

    server: str
    ca_path: str | None
    insecure: bool
    certificate_path: str | None
    private_key_path: str | None
    scheme: str | None
    token: str | None


class ApiCluster:
    """A real API server."""

    def __init__(self, api: client.ApiClient, *, timeout_seconds: float) -> None:
        self._api = api
        self._timeout = timeout_seconds
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def connection(self) -> Connection:
        """Where and as whom this client connects, for kopf's own client: one identity, one set of rights."""
        settings = self._api.configuration
        scheme, _, token = self._authorization().get("Authorization", "").partition(" ")
        return Connection(
            server=settings.host,
            ca_path=settings.ssl_ca_cert,
            insecure=not settings.verify_ssl,
            certificate_path=settings.cert_file,
            private_key_path=settings.key_file,
            scheme=scheme or None,
            token=token or None,
        )

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        try:
            return self._call("GET", kind.path(namespace, name))
        except NotFoundError:
            return None

    def version(self, kind: Kind, namespace: str, name: str) -> str | None:
        try:
            raw = self._send("GET", kind.path(namespace, name), timeout=self._timeout, accept=METADATA_ONLY)
        except NotFoundError:
            return None
        return str(json.loads(raw)["metadata"]["resourceVersion"])

    def list(self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = "") -> list[Manifest]:
        return [
            {"apiVersion": kind.api_version, "kind": kind.kind, **item}
            for page in self._pages(kind, namespace, selector, fields)
            for item in page.get("items") or ()
        ]

    def _pages(self, kind: Kind, namespace: str | None, selector: str, fields: str) -> Iterator[Manifest]:
        token = ""
        while True:
            query = {"limit": str(LIST_PAGE), "labelSelector": selector, "fieldSelector": fields, "continue": token}
            page = self._call("GET", kind.path(namespace), query={k: v for k, v in query.items() if v})
            yield page
            token = page.get("metadata", {}).get("continue") or ""
            if not token:
                return

    def create(self, kind: Kind, namespace: str, body: Manifest) -> None:
        self._call("POST", kind.path(namespace), query={"fieldManager": constants.FIELD_MANAGER}, body=body)

    def apply(self, kind: Kind, namespace: str, body: Manifest) -> Manifest:
        return self._call(
            "PATCH",
            kind.path(namespace, body["metadata"]["name"]),
            query={"fieldManager": constants.FIELD_MANAGER, "force": "true"},
            body=body,
            content_type="application/apply-patch+yaml",
        )

    def patch(
        self, kind: Kind, namespace: str, name: str, body: Manifest, *, subresource: str | None = None
    ) -> Manifest:
        return self._call(
            "PATCH",
            kind.path(namespace, name, subresource),
            query={"fieldManager": constants.FIELD_MANAGER},
            body=body,
            content_type="application/merge-patch+json",
        )

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        self._call("DELETE", kind.path(namespace, name), body=body)

    def read_pod(self, namespace: str, pod: str, port: int, path: str, *, timeout_seconds: float) -> str:
        url = f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}"
        return self._send("GET", url, timeout=timeout_seconds, limit=PROXY_BODY_BYTES_MAX).decode(errors="replace")

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> Manifest:
        raw = self._send(method, path, query=query, body=body, content_type=content_type, timeout=self._timeout)
        return cast("Manifest", json.loads(raw))

    def _send(
        self,
        method: str,
        path: str,
        *,
        timeout: float,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
        limit: int | None = None,
        accept: str = "application/json",
    ) -> bytes:
        if self._closed:
            raise UnavailableError(f"The operator is stopping: {method} {path} was not asked any more")
        headers = {"Accept": accept, "User-Agent": constants.FIELD_MANAGER, **self._authorization()}
        if body is not None:
            headers["Content-Type"] = content_type
        address = f"{self._api.configuration.host}{path}{'?' + urlencode(query) if query else ''}"
        try:
            response = self._api.rest_client.pool_manager.request(
                method,
                address,
                headers=headers,
                body=None if body is None else encode_body(body),
                timeout=urllib3.Timeout(connect=min(timeout, CONNECT_SECONDS_MAX), read=timeout),
                retries=False,
                preload_content=False,
            )
            try:
                raw = response.read(limit)
            finally:
                response.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise UnavailableError(f"The API server did not answer {method} {path}: {error}") from error
        if response.status >= 300:
            raise _error(response.status, raw, f"{method} {path}")
        return cast("bytes", raw)

    def _authorization(self) -> dict[str, str]:
        """The bearer token, read anew each time: a pod's own token is replaced every hour."""
        token = self._api.configuration.auth_settings().get("BearerToken")
        return {} if token is None else {"Authorization": str(token["value"])}


def connect(*, timeout_seconds: float) -> ApiCluster:
    """Connect with the pod's own account, or with the current kubeconfig outside a cluster."""
    settings = client.Configuration()
    settings.connection_pool_maxsize = CONNECTIONS_MAX
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        config.load_kube_config(client_configuration=settings)
    return ApiCluster(client.ApiClient(settings), timeout_seconds=timeout_seconds)


def _error(status: int, raw: bytes, what: str) -> OperatorError:
    try:
        message = str(json.loads(raw).get("message", ""))
    except (*JSON_ERRORS, AttributeError):
        message = raw[:200].decode(errors="replace")
    kind = _ERRORS.get(status, ApiError)
    if UNTYPED_PATCH in message:
        # An applied object with a field its schema does not know is answered with 500, but no retry will ever help.
        kind = RejectedError
    return kind(status, message or f"{what} answered {status}")
