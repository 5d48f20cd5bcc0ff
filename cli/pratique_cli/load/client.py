"""Send a trace to an OpenAI-compatible server and note when everything happened.

Open loop: a request leaves at its time however many are still running, and its latency counts from that time, not from when a free
connection was found (no coordinated omission). Whatever goes wrong becomes an observation with an error; nothing is left out.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from pratique_cli.load.trace import Planned
from pratique_contract.certificates import must_verify
from pratique_contract.constants import CHAT_COMPLETIONS_PATH, FINGERPRINT_HEADER, REQUEST_ID_HEADER

REQUEST_SECONDS_MAX: Final = 120.0
IN_FLIGHT_MAX: Final = 1024
ERROR_BODY_CHARACTERS: Final = 200


@dataclass(frozen=True, kw_only=True)
class Target:
    """A served model. Temperature 0 and ignored stop tokens make the work of a trace the same on every server that has both."""

    url: str
    model: str
    body: dict[str, Any] = field(default_factory=lambda: {"temperature": 0})


@dataclass(kw_only=True)
class Observation:
    """What one request saw. Times are seconds since the trace's start; ``tokens_at`` has one entry per event that carried text.
    ``error`` is None for a stream that ended as it should; then ``output_tokens`` is what the server counted."""

    planned: Planned
    sent_at: float = 0.0
    tokens_at: list[float] = field(default_factory=list)
    ended_at: float = 0.0
    status: int | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    fingerprint: str | None = None
    error: str | None = None


async def run_trace(trace: Sequence[Planned], target: Target, *, run: str = "load") -> list[Observation]:
    """Send everything and wait for the last answer; observations in the trace's order. ``run`` makes request ids of their own."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=IN_FLIGHT_MAX)
    timeout = httpx.Timeout(REQUEST_SECONDS_MAX)
    verify = must_verify(target.url)
    async with httpx.AsyncClient(
        base_url=target.url, limits=limits, timeout=timeout, trust_env=False, verify=verify
    ) as client:
        started, live = time.monotonic(), [0]
        tasks = [_send_when_due(planned, target, client, started, live, run) for planned in trace]
        return list(await asyncio.gather(*tasks))


async def _send_when_due(
    planned: Planned, target: Target, client: httpx.AsyncClient, started: float, live: list[int], run: str
) -> Observation:
    seen = Observation(planned=planned)
    await asyncio.sleep(max(0.0, started + planned.at - time.monotonic()))
    seen.sent_at = time.monotonic() - started
    live[0] += 1
    try:
        if live[0] > IN_FLIGHT_MAX:
            seen.error = f"not sent: {IN_FLIGHT_MAX} requests are in flight"
        else:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                await _stream(seen, target, client, started, run)
    except TimeoutError:
        seen.error = f"no end within {REQUEST_SECONDS_MAX:g} s"
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        seen.error = f"{type(error).__name__}: {error}"
    finally:
        live[0] -= 1
        seen.ended_at = time.monotonic() - started
    return seen


async def _stream(seen: Observation, target: Target, client: httpx.AsyncClient, started: float, run: str) -> None:
    planned = seen.planned
    body = {
        "model": target.model,
        "messages": list(planned.messages),
        "max_tokens": planned.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **target.body,
    }
    headers = {REQUEST_ID_HEADER: f"{run}-{planned.tenant.name}-{planned.number}"}
    if planned.tenant.api_key is not None:
        headers["authorization"] = f"Bearer {planned.tenant.api_key}"
    async with client.stream("POST", CHAT_COMPLETIONS_PATH, json=body, headers=headers) as response:
        seen.status, seen.fingerprint = response.status_code, response.headers.get(FINGERPRINT_HEADER)
        if response.status_code != httpx.codes.OK:
            text = (await response.aread()).decode("utf-8", "replace")
            seen.error = f"HTTP {response.status_code}: {text[:ERROR_BODY_CHARACTERS]}"
            return
        async for line in response.aiter_lines():
            if line.startswith("data:") and _take(seen, line.removeprefix("data:").strip(), time.monotonic() - started):
                break
        else:
            seen.error = "the stream broke off before [DONE]"
        if seen.error is None and seen.finish_reason is None:
            seen.error = "the stream has no finish reason"


def _take(seen: Observation, data: str, now: float) -> bool:
    """Note one event; True at the end of the stream."""
    if data == "[DONE]":
        return True
    event = json.loads(data)
    if "error" in event:
        seen.error = f"broke off: {event['error'].get('code')}"
    usage = event.get("usage") or {}
    seen.output_tokens = usage.get("completion_tokens", seen.output_tokens)
    seen.prompt_tokens = usage.get("prompt_tokens", seen.prompt_tokens)
    for choice in event.get("choices", ()):
        seen.finish_reason = choice.get("finish_reason") or seen.finish_reason
        if choice.get("delta", {}).get("content"):
            seen.tokens_at.append(now)
    return False
