"""Have a running pod make its release record, or add its outputs to one: ask with POST, then look with GET until it is there.

The pod works in time no user wants, so this may take a while; each change of what it says is told. Asking again is harmless.
"""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from pratique_cli.errors import EXIT_FAILED, EXIT_NO, EXIT_USAGE, CliError

if TYPE_CHECKING:
    from pratique_contract.record import ReleaseRecord

POLL_SECONDS: Final = 1.0
WAIT_SECONDS_MAX: Final = 1900.0
REQUEST_SECONDS_MAX: Final = 30.0


class ManagementPort(Protocol):
    """One pod's management port: a method, a path and a body in, status and body out. Raises ``CliError`` when it cannot be reached."""

    def __call__(self, method: str, path: str, body: bytes) -> tuple[int, bytes]: ...


def at_url(url: str) -> ManagementPort:
    """A port that this machine reaches itself, as ``kubectl port-forward`` or ``pratique serve`` opens one."""
    from urllib.parse import urlsplit

    import httpx

    from pratique_contract.certificates import must_verify

    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket without its other half, a port that is none
        usable = False
    if not usable:
        raise CliError(f"{url!r} is not an http:// or https:// URL of a management port", code=EXIT_USAGE)

    def request(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        try:
            response = httpx.request(
                method,
                f"{url.rstrip('/')}{path}",
                content=body,
                timeout=REQUEST_SECONDS_MAX,
                trust_env=False,
                verify=must_verify(url),
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CliError(f"{url} does not answer: {error}") from error
        return response.status_code, response.content

    return request


def obtain_record(
    port: ManagementPort,
    *,
    base: "ReleaseRecord | None" = None,
    tell: Callable[[str], None],
    wait_seconds: float = WAIT_SECONDS_MAX,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> "ReleaseRecord":
    """The record the pod made. Raises ``CliError`` with what it said when there will be none."""
    from pratique_contract.canonical import digest_bytes
    from pratique_contract.constants import RECORD_API_PATH, RECORD_OF_PARAMETER
    from pratique_contract.record import RecordError, ReleaseRecord

    said = ""
    end = clock() + wait_seconds
    sent = b"" if base is None else base.to_json().encode()
    status, body = port("POST", RECORD_API_PATH, sent)
    begun = status == 202  # what it says to this is for programs
    while status == 202:
        sleep(POLL_SECONDS)
        status, body = port("GET", f"{RECORD_API_PATH}?{RECORD_OF_PARAMETER}={digest_bytes(sent)}", b"")
        message = _message(body)
        if status == 202 and message != said:
            tell(message)
            said = message
        if status == 202 and clock() > end:
            raise CliError(f"The pod had no record after {wait_seconds:.0f} s: {message}")
    if begun and status == 503:
        raise CliError(
            f"The pod lost what it had loaded while it made the record ({_message(body)}). A refused pod is restarted after "
            "startup.timeoutSeconds: ask again soon after a start, or set more"
        )
    if status != 200:
        raise CliError(_message(body), code=EXIT_NO if status == 409 else EXIT_FAILED)
    try:
        return ReleaseRecord.from_json(body)
    except RecordError as error:
        raise CliError(f"What the pod sent is no record: {error}") from error


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return f"The pod says {body[:200].decode(errors='replace').strip() or 'nothing'}"
