"""Send a golden case to this pod's own public port, over a real socket, like any client.

In go a case's messages, out comes the checked stream. Overload and a port that does not listen yet are ``BusyError`` (the
caller tries again); every other answer that is not a stream is a failure with a reason.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

from pratique_contract.certificates import must_verify
from pratique_contract.constants import (
    CHAT_COMPLETIONS_PATH,
    FINGERPRINT_HEADER,
    PROBE_HEADER,
    REQUEST_ID_HEADER,
)
from pratique_contract.reasons import Reason
from pratique_server.gate.errors import BusyError, CheckFailedError
from pratique_server.gate.sse import SseError, read_events
from pratique_server.gate.stream import ENGINE_ERROR_CODES, StreamChecker, StreamReport

NOT_READY_CODE: Final = "not_ready"
ERROR_BODY_BYTES_MAX: Final = 4096
CONNECT_SECONDS_MAX: Final = 5.0


class ProbeClient:
    """One per gate run. Timeouts are the caller's: it bounds the whole run."""

    def __init__(self, *, base_url: str, probe_token: str, model: str) -> None:
        self._model = model
        self._client = httpx.AsyncClient(
            base_url=base_url,
            headers={PROBE_HEADER: probe_token},
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS_MAX),
            trust_env=False,  # a proxy in the environment must not come between the pod and itself
            verify=must_verify(base_url),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def stream(
        self,
        *,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int,
        fingerprint: str,
        request_id: str,
        rules: Mapping[str, Any] | None = None,
        begun: asyncio.Event | None = None,
    ) -> StreamReport:
        """Run one request, greedy unless ``rules`` (fields of the body) say otherwise; raises ``BusyError`` or ``CheckFailedError``.
        ``begun`` is set when the answer begins."""
        body = probe_body(model=self._model, messages=messages, max_tokens=max_tokens) | dict(rules or {})
        headers = {REQUEST_ID_HEADER: request_id}
        try:
            async with self._client.stream("POST", CHAT_COMPLETIONS_PATH, json=body, headers=headers) as response:
                await _require_stream(response)
                if begun is not None:
                    begun.set()
                _require_equal(f"Header {FINGERPRINT_HEADER}", fingerprint, response.headers.get(FINGERPRINT_HEADER))
                report = await _read(response)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise BusyError(f"no connection to {self._client.base_url}", saturated=False) from error
        except (httpx.TimeoutException, httpx.LocalProtocolError, httpx.UnsupportedProtocol) as error:
            raise CheckFailedError(
                Reason.GATE_FAILED, f"The gate's own request could not be sent: {type(error).__name__}: {error}"
            ) from error
        except httpx.TransportError as error:
            raise CheckFailedError(
                Reason.STREAM_BROKEN, f"The connection broke: {type(error).__name__}: {error}"
            ) from error
        _require_equal("system_fingerprint", fingerprint, report.system_fingerprint)
        _require_equal("model", self._model, report.model)
        return report


def probe_body(*, model: str, messages: Sequence[Mapping[str, Any]], max_tokens: int) -> dict[str, Any]:
    """A greedy request that leaves nothing to defaults: what a golden case proves must not move with them."""
    return {
        "model": model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        "top_p": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "repetition_penalty": 1,
        "logprobs": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


async def _read(response: httpx.Response) -> StreamReport:
    checker = StreamChecker()
    try:
        async for payload in read_events(response.aiter_raw()):
            checker.feed(payload)
    except SseError as error:
        raise CheckFailedError(Reason.STREAM_BROKEN, f"The stream's bytes are malformed: {error}") from error
    return checker.finish()


async def _require_stream(response: httpx.Response) -> None:
    kind = response.headers.get("content-type", "")
    if response.status_code == httpx.codes.OK and kind.startswith("text/event-stream"):
        # The bytes are read as they come; a client would decode what this header names.
        _require_equal("Header content-encoding", "identity", response.headers.get("content-encoding", "identity"))
        return
    code, message = await _read_error(response)
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise BusyError(f"HTTP {response.status_code} {code}: {message}", saturated=True)
    if code == NOT_READY_CODE:
        raise BusyError(f"HTTP {response.status_code} {code}: {message}", saturated=False)
    if code in ENGINE_ERROR_CODES:
        raise CheckFailedError(Reason.ENGINE_UNREACHABLE, f"HTTP {response.status_code} {code}: {message}")
    raise CheckFailedError(
        Reason.STREAM_BROKEN,
        f"The server answered a golden request with HTTP {response.status_code} ({kind or 'no content type'}) {code}: {message}",
        expected="HTTP 200 text/event-stream",
        observed=f"HTTP {response.status_code} {kind}",
    )


async def _read_error(response: httpx.Response) -> tuple[str, str]:
    """Code and message of an error body, whatever shape it has."""
    content = b""
    try:
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > ERROR_BODY_BYTES_MAX:
                break
    except httpx.DecodingError as problem:
        return "", f"a body that cannot be decoded: {problem}"
    text = content[:ERROR_BODY_BYTES_MAX].decode("utf-8", "replace")
    try:
        error = httpx.Response(200, text=text).json()["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", text[:200]


def _require_equal(where: str, expected: str, observed: str | None) -> None:
    if observed != expected:
        raise CheckFailedError(
            Reason.STREAM_BROKEN,
            f"{where} is {observed}, here it must be {expected}",
            expected=expected,
            observed=str(observed),
        )
