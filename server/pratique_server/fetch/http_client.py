"""One HTTP client for all transfers, and one table from what a peer or the network did to the error that says so.

Certificates are always checked, against the usual authorities and the Secret's ``ca.crt``. Proxies come from the environment.
"""

import email.utils
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Final
from urllib.parse import urlsplit

import certifi
import httpx

from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.errors import (
    CorruptError,
    FetchError,
    NotFoundError,
    RateLimitedError,
    StalledError,
    TruncatedError,
    UnauthorizedError,
)
from pratique_server.fetch.numbers import whole_number
from pratique_server.fetch.secrets import Credentials, clean_url

CONNECT_SECONDS: Final = 15.0
USER_AGENT: Final = "pratique-fetch"
_ERROR_BYTES_SHOWN: Final = 200
_ERROR_BYTES_READ: Final = 4096


def make_tls(credentials: Credentials) -> ssl.SSLContext:
    """Trust the system's authorities, the usual ones (a slim image has none of its own), and the given one."""
    if credentials.ca_path is None:
        return _trust_usual_authorities()
    context = _read_usual_authorities()
    try:
        context.load_verify_locations(cafile=credentials.ca_path)
    except (OSError, ssl.SSLError) as error:
        raise FetchError(f"The key ca.crt of the Secret holds no certificate that can be read: {error}") from error
    return context


def _read_usual_authorities() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(cafile=certifi.where())
    return context


# Nobody changes it, so one is enough: reading takes 40 ms.
_trust_usual_authorities = cache(_read_usual_authorities)


def make_client(credentials: Credentials, download: DownloadSpec, *, tls: ssl.SSLContext | None = None) -> httpx.Client:
    """A client whose reads give up after ``stall_seconds`` of silence."""
    connections = download.connections + 2  # beside the bodies: listings and tokens
    return httpx.Client(
        verify=tls or make_tls(credentials),
        timeout=httpx.Timeout(CONNECT_SECONDS, read=download.stall_seconds, pool=None),
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        headers={"User-Agent": USER_AGENT},
        follow_redirects=True,
    )


def raise_for_status(response: httpx.Response, what: str) -> None:
    """Raise the fitting error for an answer that is not a success; reads a little of its body for the sentence."""
    if response.status_code < 400:
        return
    raise explain_status(
        response.status_code, what, host=response.url.host, headers=response.headers, detail=_read_detail(response)
    )


def explain_status(
    status: int,
    what: str,
    *,
    host: str | None,
    headers: "httpx.Headers | dict[str, str]",
    detail: str = "",
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> FetchError:
    """The error a status stands for. ``detail`` is what the peer said itself."""
    said = f" ({detail})" if detail else ""
    match status:
        case 401 | 403 if headers.get("x-error-code") == "GatedRepo":
            return UnauthorizedError(
                f"{what} is gated at {host}{said}: accept the model's terms with the account of the Secret's token"
            )
        case 401 | 403:
            return UnauthorizedError(
                f"{host} refuses {what} with status {status}{said}: check the credentials in the Secret, and that they "
                "may read it"
            )
        case 404 | 410:
            return NotFoundError(f"{host} has no {what}{said}: check the name and the revision")
        case 412:
            return CorruptError(f"{what} was replaced at {host} while it was being fetched; start again")
        case 429:
            return RateLimitedError(
                f"{host} asks to send fewer requests while fetching {what}{said}",
                transient=True,
                wait_seconds=retry_after(headers, now()),
            )
    # 5xx, and the few 4xx that speak about the moment rather than about the request.
    transient = status >= 500 or status in (408, 425)
    return FetchError(
        f"{host} answered {what} with status {status}{said}",
        transient=transient,
        wait_seconds=retry_after(headers, now()) if transient else None,
    )


def retry_after(headers: "httpx.Headers | dict[str, str]", now: datetime) -> float | None:
    """Seconds until the peer wants to be asked again: Retry-After as seconds or date, else the hub's RateLimit header."""
    value = (headers.get("retry-after") or "").strip()
    if (seconds := whole_number(value)) is not None:
        return float(seconds)
    if value:
        try:
            return max(0.0, (email.utils.parsedate_to_datetime(value) - now).total_seconds())
        except (ValueError, TypeError):
            return None
    for field in (headers.get("ratelimit") or "").split(";"):
        name, _, left = field.strip().partition("=")
        if name == "t" and (seconds := whole_number(left)) is not None:
            return float(seconds)
    return None


def explain_transport(error: Exception, url: str) -> FetchError:
    """The error for what httpx (or the hub's copy of it) raised below HTTP; matched by class name, since the two are distinct."""
    host = urlsplit(clean_url(url)).netloc or "the peer"
    kind, text = type(error).__name__, str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate verify failed" in text:
        return FetchError(
            f"The certificate of {host} is not trusted ({text}): put its authority into the Secret as ca.crt"
        )
    if kind == "ReadTimeout":
        return StalledError(f"{host} sent nothing for a whole stall period", transient=True)
    if kind in ("RemoteProtocolError", "ReadError", "IncompleteRead"):
        return TruncatedError(f"{host} closed the connection in mid-answer ({text})", transient=True)
    if kind in ("UnsupportedProtocol", "InvalidURL", "TooManyRedirects"):
        return FetchError(f"{host} cannot be asked: {text}")
    return FetchError(
        f"{host} cannot be reached ({text or kind}): check the endpoint, the proxy and the network policy",
        transient=True,
    )


def _read_detail(response: httpx.Response) -> str:
    """The first line of an error's body, when it is text."""
    if "x-error-message" in response.headers:
        return _one_line(response.headers["x-error-message"])
    kind = response.headers.get("content-type", "").partition(";")[0]
    if kind not in ("text/plain", "application/json", "application/xml", "text/xml"):
        return ""
    body = b""
    try:
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > _ERROR_BYTES_READ:
                break
    except httpx.HTTPError:
        return ""
    return _one_line(body[:_ERROR_BYTES_READ].decode("utf-8", "replace"))


def _one_line(text: str) -> str:
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _ERROR_BYTES_SHOWN else f"{line[:_ERROR_BYTES_SHOWN]}…"
