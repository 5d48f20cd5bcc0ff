"""The only place that knows which HTTP status an error is. Bodies are ``{"error": {message, type, param, code}}``; clients are told
in headers whether trying again can help, because the official client retries 408, 409, 429 and every 5xx by itself."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pratique_contract import constants
from pratique_server import errors

MESSAGE_LENGTH_MAX: Final = 1000


@dataclass(frozen=True)
class HttpRule:
    """Status, OpenAI's error type, and seconds to wait before trying again (None: trying again does not help)."""

    status: int
    type: str
    retry_after: int | None = None


# First match wins, so subclasses stand before their bases.
_RULES: Final[tuple[tuple[type[errors.PratiqueError], HttpRule], ...]] = (
    (errors.InvalidApiKeyError, HttpRule(401, "authentication_error")),
    (errors.ModelNotFoundError, HttpRule(404, "not_found_error")),
    (errors.NotFoundError, HttpRule(404, "not_found_error")),
    (errors.MethodNotAllowedError, HttpRule(405, "invalid_request_error")),
    (errors.DuplicateIdError, HttpRule(409, "conflict_error")),
    (errors.RevisionMismatchError, HttpRule(412, "invalid_request_error")),
    (errors.RequestTooLongError, HttpRule(413, "invalid_request_error")),
    (errors.MediaTypeError, HttpRule(415, "invalid_request_error")),
    (errors.RequestError, HttpRule(400, "invalid_request_error")),
    (errors.DeadlineError, HttpRule(408, "timeout_error")),
    (errors.ServerTimeoutError, HttpRule(504, "timeout_error")),
    (errors.SaturatedError, HttpRule(429, "rate_limit_error", 1)),
    (errors.DrainingError, HttpRule(503, "unavailable_error", 1)),
    (errors.NotReadyError, HttpRule(503, "unavailable_error", 5)),
    (errors.UnavailableError, HttpRule(503, "unavailable_error", 5)),
    (errors.PratiqueError, HttpRule(500, "internal_error")),
)


def rule_of(error: errors.PratiqueError) -> HttpRule:
    return next(rule for kind, rule in _RULES if isinstance(error, kind))


def error_value(error: errors.PratiqueError) -> dict[str, Any]:
    """The JSON value of an error, bounded: a message must not carry the client's input back at length."""
    message = error.message if len(error.message) <= MESSAGE_LENGTH_MAX else f"{error.message[:MESSAGE_LENGTH_MAX]}..."
    return {
        "error": {"message": message, "type": rule_of(error).type, "param": error.param, "code": error.code},
    }


def error_body(error: errors.PratiqueError) -> bytes:
    return msgspec.json.encode(error_value(error))


def error_headers(error: errors.PratiqueError) -> list[tuple[bytes, bytes]]:
    """``x-should-retry`` always; ``Retry-After`` where waiting helps; ``WWW-Authenticate`` where HTTP demands it."""
    rule = rule_of(error)
    headers = [
        (b"content-type", b"application/json"),
        (constants.SHOULD_RETRY_HEADER.encode(), b"true" if rule.retry_after is not None else b"false"),
    ]
    if rule.retry_after is not None:
        headers.append((b"retry-after", str(rule.retry_after).encode()))
        headers.append((b"retry-after-ms", str(rule.retry_after * 1000).encode()))
    if rule.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
