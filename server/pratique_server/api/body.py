"""Read a request's JSON body within its limits: declared kind, size, time, depth, and text that can be text.

Everything here runs before a field is looked at, so its errors never depend on the route.
"""

import asyncio
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request

from pratique_server.config import ApiLimits
from pratique_server.errors import (
    CancelledByClientError,
    InvalidJsonError,
    InvalidRequestError,
    MediaTypeError,
    RequestTooLongError,
)

JSON_TYPE: Final = "application/json"


async def read_json_object(request: Request, *, bytes_max: int, limits: ApiLimits) -> dict[str, Any]:
    """The body as an object. Raises a ``RequestError`` for everything that is not one."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON_TYPE:
        raise MediaTypeError(f"The body must be declared as {JSON_TYPE}")
    body = await _read(request, bytes_max=bytes_max, seconds_max=limits.body_seconds_max)
    return decode_object(body, depth_max=limits.json_depth_max)


async def _read(request: Request, *, bytes_max: int, seconds_max: float) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise RequestTooLongError(f"The body is larger than {bytes_max} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(seconds_max):
            async for chunk in request.stream():
                body += chunk
                if len(body) > bytes_max:
                    raise RequestTooLongError(f"The body is larger than {bytes_max} bytes")
    except TimeoutError as error:
        raise InvalidRequestError(f"The body did not arrive within {seconds_max:g} s") from error
    except ClientDisconnect as error:
        raise CancelledByClientError("The client went away while sending its request") from error
    return bytes(body)


def decode_object(body: bytes, *, depth_max: int) -> dict[str, Any]:
    """Parse and check: an object, not too deep, no NUL characters. NaN, infinities, numbers out of range and lone
    surrogates are not JSON here."""
    try:
        value = msgspec.json.decode(body)
    except RecursionError as error:
        raise InvalidJsonError("The body is nested too deeply") from error
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise InvalidJsonError("The body is not valid JSON") from error
    if not isinstance(value, dict):
        raise InvalidJsonError("The body must be a JSON object")
    _check_tree(value, depth_max)
    return value


def _check_tree(value: Any, depth_max: int) -> None:
    """Level by level, without recursion."""
    level: list[Any] = [value]
    for _ in range(depth_max):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise InvalidJsonError(f"The body is nested more than {depth_max} levels deep")


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        items = [*node.keys(), *node.values()]
    elif isinstance(node, list):
        items = node
    else:
        return []
    if any(isinstance(item, str) and "\0" in item for item in items):
        # No template or vocabulary has a use for it, and libraries written in C cut text there.
        raise InvalidRequestError("The body holds a NUL character")
    return [item for item in items if isinstance(item, dict | list)]
