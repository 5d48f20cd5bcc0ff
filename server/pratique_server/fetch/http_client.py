"""One HTTP client for all transfers, and one table from what a peer or the network did to the error that says so.

Certificates are always checked, against the usual authorities and the Secret's ``ca.crt``. Proxies come from the environment.
"""

import email.utils
import json
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Final
from urllib.parse import SplitResult, urlsplit

import certifi
import httpx

from pratique_contract.canonical import JSON_ERRORS
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
from pratique_server.fetch.proxies import ByEnvironment
from pratique_server.fetch.secrets import Credentials, clean_url

CONNECT_SECONDS: Final = 15.0
USER_AGENT: Final = "pratique-fetch"
_PROXY_REMEDY: Final = "check HTTPS_PROXY and HTTP_PROXY, or name the host in NO_PROXY"
_CONTENT_STATUSES: Final = (200, 206)
_ERROR_BYTES_SHOWN: Final = 120
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


def split_endpoint(url: str) -> SplitResult | None:
    """The parts of a service's address, or None for what is none."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket without its other half, a port that is none
        return None
    return parts if usable else None


def make_client(credentials: Credentials, download: DownloadSpec, *, tls: ssl.SSLContext | None = None) -> httpx.Client:
    """A client whose reads give up after ``stall_seconds`` of silence."""
    connections = download.connections + 2  # beside the bodies: listings and tokens
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx.Client(
        transport=ByEnvironment(verify=tls or make_tls(credentials), limits=limits),
        trust_env=False,
        timeout=httpx.Timeout(CONNECT_SECONDS, read=download.stall_seconds, pool=None),
        headers={"User-Agent": USER_AGENT},
        follow_redirects=True,
    )


def raise_for_status(response: httpx.Response, what: str) -> None:
    """Raise the fitting error for an answer that brings no content; reads a little of its body for the sentence."""
    if response.status_code in _CONTENT_STATUSES:
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
        case 407:
            return FetchError(f"The proxy on the way to {host} wants credentials{said}: {_PROXY_REMEDY}")
        case 412:
            return CorruptError(f"{what} was replaced at {host} while it was being fetched; start again")
        case 429:
            return RateLimitedError(
                f"{host} asks to send fewer requests while fetching {what}{said}: give it a token, name a mirror, or take fewer "
                "connections",
                transient=True,
                wait_seconds=retry_after(headers, now()),
            )
    # 5xx, the few 4xx that speak about the moment rather than about the request, and a redirect to nowhere.
    transient = status >= 500 or status < 400 or status in (408, 425)
    remedy = ": it, or a proxy before it, is in trouble" if transient else ""
    return FetchError(
        f"{host} answered {what} with status {status}{said}{remedy}",
        transient=transient,
        wait_seconds=retry_after(headers, now()) if transient else None,
    )


def retry_after(headers: "httpx.Headers | dict[str, str]", now: datetime) -> float | None:
    """Seconds until the peer wants to be asked again: Retry-After as seconds or date, else the hub's RateLimit header. A date is the
    peer's, so it is read by the peer's clock where the answer says what that shows: ours may be an hour off."""
    value = (headers.get("retry-after") or "").strip()
    if (seconds := whole_number(value)) is not None:
        return float(seconds)
    if value:
        at, theirs = _date(value), _date(headers.get("date") or "")
        return None if at is None else max(0.0, (at - (theirs or now)).total_seconds())
    for field in (headers.get("ratelimit") or "").split(";"):
        name, _, left = field.strip().partition("=")
        if name == "t" and (seconds := whole_number(left)) is not None:
            return float(seconds)
    return None


def is_page(headers: httpx.Headers) -> bool:
    """Whether an answer is a page for people, such as a proxy or a login gives in place of what was asked for."""
    kind = str(headers.get("content-type", ""))
    return kind.partition(";")[0].strip().lower() == "text/html"


def explain_page(host: str | None, what: str) -> FetchError:
    """No digest is wrong here, and nobody has to look for damage: something else has answered."""
    return FetchError(
        f"{host} answers {what} with a web page: a login or a proxy stands in between; check the address, the credentials and the proxy",
        transient=True,
    )


def explain_transport(error: Exception, url: str) -> FetchError:
    """The error for what httpx, the hub's copy of it or urllib3 raised below HTTP; matched by class name, since they are distinct."""
    host = urlsplit(clean_url(url)).netloc or "the peer"
    kind, text = type(error).__name__, str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate verify failed" in text:
        return _explain_certificate(host, text)
    if "WRONG_VERSION_NUMBER" in text:
        return FetchError(f"{host} speaks no TLS: write http:// in the endpoint, or name the port that does")
    if kind in ("ReadTimeout", "ReadTimeoutError"):
        return StalledError(
            f"{host} sent nothing for a whole stall period: check the network and the mirror, or raise stallSeconds",
            transient=True,
        )
    if kind in ("RemoteProtocolError", "ReadError", "IncompleteRead", "ProtocolError"):
        return TruncatedError(
            f"{host} closed the connection in mid-answer ({text}): check the proxy or mirror in between", transient=True
        )
    if kind in ("DecodingError", "DecodeError"):
        return FetchError(
            f"{host} sends what is not in the encoding it says ({text}): check the proxy in between", transient=True
        )
    if kind == "ProxyError":
        return FetchError(
            f"The proxy on the way to {host} does not let us through ({text}): {_PROXY_REMEDY}",
            transient="407" not in text,
        )
    if kind in ("UnsupportedProtocol", "InvalidURL", "TooManyRedirects"):
        return FetchError(f"{host} cannot be asked: {text}")
    return FetchError(
        f"{host} cannot be reached ({text or kind}): check the endpoint, the proxy and the network policy",
        transient=True,
    )


def _explain_certificate(host: str, text: str) -> FetchError:
    """What helps depends on what is wrong with it: an authority in the Secret makes no expired certificate valid."""
    if "not yet valid" in text or "has expired" in text:
        remedy = "renew it, or set the node's clock if that is what is wrong"
    elif "mismatch" in text:
        remedy = "write the endpoint with a name it is made for"
    else:
        remedy = "put its authority into the Secret as ca.crt"
    return FetchError(f"The certificate of {host} is not trusted ({text}): {remedy}")


def _date(text: str) -> datetime | None:
    """An HTTP date. One without a zone is in UTC, as all of them are."""
    try:
        found = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _read_detail(response: httpx.Response) -> str:
    """What an error's body says, when it is text: of a registry's or a store's form of an error only its code and sentence, since what
    helps comes after it and has to fit into a condition, too."""
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
    text = body[:_ERROR_BYTES_READ].decode("utf-8", "replace")
    return _one_line(_told_in_json(text) or _told_in_xml(text) or text)


def _told_in_json(text: str) -> str | None:
    """``{"errors": [{"code", "message"}]}`` of a registry, ``{"error": …}`` of most others."""
    try:
        value = json.loads(text)
        found = value["errors"][0] if value.get("errors") else value["error"]
        return found if isinstance(found, str) else _told(found.get("code"), found.get("message"))
    except (*JSON_ERRORS, AttributeError, LookupError, TypeError):
        return None


def _told_in_xml(text: str) -> str | None:
    """``<Error><Code>…</Code><Message>…</Message>`` of S3."""
    parts = [re.search(f"<{name}>([^<]*)</{name}>", text) for name in ("Code", "Message")]
    return _told(*(part and part[1] for part in parts))


def _told(code: object, message: object) -> str | None:
    return ": ".join(str(part) for part in (code, message) if part) or None


def _one_line(text: str) -> str:
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _ERROR_BYTES_SHOWN else f"{line[:_ERROR_BYTES_SHOWN]}…"
