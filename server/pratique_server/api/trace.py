"""One request's record: what it was, how long each phase took, how it ended. Written as one JSON line and as metrics; never
content, never keys.

Five endings stay distinct: ``stop`` (normal), ``limit`` (token limit), ``cancelled`` (the client), ``rejected`` (before it ran),
``failed`` (while it ran, or our fault).
"""

import logging
from dataclasses import dataclass, field
from typing import Any, Final

from pratique_server.engine.protocol import StepEvent
from pratique_server.errors import CancelledByClientError, PratiqueError, RequestError
from pratique_server.metrics import Metrics

ACCESS_LOGGER: Final = "pratique.access"
_ENDING_OF_FINISH: Final = {"stop": "stop", "length": "limit"}
_access = logging.getLogger(ACCESS_LOGGER)


@dataclass(kw_only=True)
class RequestTrace:
    """Times are monotonic seconds; None means the phase was not reached."""

    request_id: str
    method: str
    path: str
    arrived_at: float
    reserved: bool = False
    generates: bool = False
    admitted_under: str | None = None
    tenant: str | None = None
    status: int | None = None
    stream: bool | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    max_new_tokens: int | None = None
    output_tokens: int = 0
    sampling: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    deadline_ms: int | None = None
    preemptions: int = 0
    finish_reason: str | None = None
    error: PratiqueError | None = None
    admitted_at: float | None = None
    enqueued_at: float | None = None
    first_scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    cleaned_up_at: float | None = None
    token_gaps: list[float] = field(default_factory=list)

    def note_event(self, event: StepEvent, now: float) -> None:
        """Take the times and counts an engine event carries."""
        self.enqueued_at = self.enqueued_at or event.enqueued_at
        self.first_scheduled_at = self.first_scheduled_at or event.first_scheduled_at
        self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
        self.preemptions = max(self.preemptions, event.preemptions)
        if not event.token_ids:
            return
        if self.last_token_at is None:
            self.first_token_at = now
        else:
            gap = (now - self.last_token_at) / len(event.token_ids)
            self.token_gaps.extend([gap] * len(event.token_ids))
        self.last_token_at = now

    @property
    def ending(self) -> str:
        if isinstance(self.error, CancelledByClientError):
            return "cancelled"
        if self.error is not None:
            ran = self.enqueued_at is not None or self.first_token_at is not None
            refused = isinstance(self.error, RequestError) or (self.status or 0) in (401, 408, 409, 412, 429, 503)
            return "rejected" if refused and not ran else "failed"
        return _ENDING_OF_FINISH.get(self.finish_reason or "", "stop")

    @property
    def code(self) -> str:
        return self.error.code if self.error is not None else ""


def finish_trace(trace: RequestTrace, metrics: Metrics, *, now: float, facts: dict[str, Any]) -> None:
    """Write the line and count the request. The gate's own requests are logged and not counted."""
    _access.info("Answered request", extra={"fields": access_value(trace, now=now, facts=facts)})
    if trace.reserved or not trace.generates:
        return
    metrics.requests.labels(ending=trace.ending, code=trace.code).inc()
    if trace.ending == "rejected":
        metrics.rejections.labels(code=trace.code).inc()
        return
    metrics.duration.observe(now - trace.arrived_at)
    metrics.prompt_tokens.inc(trace.prompt_tokens or 0)
    metrics.output_tokens.inc(trace.output_tokens)
    for histogram, start, end in (
        (metrics.ttft, trace.arrived_at, trace.first_token_at),
        (metrics.queue_time, trace.enqueued_at, trace.first_scheduled_at),
        (metrics.prefill_time, trace.first_scheduled_at, trace.first_token_at),
        (metrics.decode_time, trace.first_token_at, trace.last_token_at),
    ):
        if start is not None and end is not None:
            histogram.observe(max(end - start, 0.0))
    for gap in trace.token_gaps:
        metrics.itl.observe(gap)


def access_value(trace: RequestTrace, *, now: float, facts: dict[str, Any]) -> dict[str, Any]:
    """The JSON line as a value. Timestamps are milliseconds after arrival: one clock, no date arithmetic for the reader."""
    times = ("admitted", "enqueued", "first_scheduled", "first_token", "last_token", "cleaned_up")
    return {
        "request_id": trace.request_id,
        "method": trace.method,
        "path": trace.path,
        "status": trace.status,
        "ending": trace.ending,
        "error_code": trace.code or None,
        "finish_reason": trace.finish_reason,
        "disconnect": isinstance(trace.error, CancelledByClientError),
        "reserved": trace.reserved,
        "tenant_id": trace.tenant,
        **facts,
        "stream": trace.stream,
        "prompt_tokens": trace.prompt_tokens,
        "cached_tokens": trace.cached_tokens,
        "max_new_tokens": trace.max_new_tokens,
        "output_tokens": trace.output_tokens,
        "sampling": trace.sampling or None,
        "seed": trace.seed,
        "deadline_ms": trace.deadline_ms,
        "preemptions": trace.preemptions,
        "queue_ms": _ms(trace.enqueued_at, trace.first_scheduled_at),
        "prefill_ms": _ms(trace.first_scheduled_at, trace.first_token_at),
        "decode_ms": _ms(trace.first_token_at, trace.last_token_at),
        "ttft_ms": _ms(trace.arrived_at, trace.first_token_at),
        "itl_p50_ms": _percentile_ms(trace.token_gaps, 0.50),
        "itl_p95_ms": _percentile_ms(trace.token_gaps, 0.95),
        "duration_ms": _ms(trace.arrived_at, now),
        "timestamps_ms": {name: _ms(trace.arrived_at, getattr(trace, f"{name}_at")) for name in times},
    }


def _ms(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round((end - start) * 1000, 3)


def _percentile_ms(gaps: list[float], share: float) -> float | None:
    if not gaps:
        return None
    ordered = sorted(gaps)
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000, 3)
