"""The engine seam: everything that can produce tokens sits behind ``Engine``.

What crosses it are token ids and rules, never text and never HTTP. The API process owns text; an engine owns
computation. Values are frozen msgspec structs, so the same types travel over the process boundary unchanged.
"""

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from pratique_server.artifacts.files import LoadedFile


class FinishReason(StrEnum):
    """Why an engine ended a request by itself. Cancellation and failure are not finishes; they end the stream otherwise."""

    STOP = "stop"
    LENGTH = "length"


class SamplingRules(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch a rule off.

    ``seed`` None asks the engine to choose one; with a seed the stream depends on (seed, position) only, never on batching.
    ``logprobs`` None sends none; N sends the chosen token's log-probability and the N most likely alternatives.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    logprobs: int | None = None


class ExecutionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly what will run. Cache identity derives from this and never from text.

    ``stop_token_ids`` end the request with ``stop``; ``min_tokens`` holds them back. ``deadline`` is ``time.monotonic()`` seconds
    (one machine, one clock). ``priority``: smaller runs earlier, as in vLLM. ``reserved`` marks the gate's own requests: they
    bypass tenant queues.
    """

    request_id: str
    prompt_ids: list[int]
    max_new_tokens: int
    stop_token_ids: list[int]
    sampling: SamplingRules
    min_tokens: int = 0
    tenant: str = "default"
    cache_salt: str = ""
    priority: int = 0
    deadline: float | None = None
    reserved: bool = False


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probability (nat, of the unmodified model distribution) of one chosen id and the most likely alternatives as (id, logprob)."""

    chosen: float
    top: list[tuple[int, float]] = []


class StepEvent(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of one request after one step. The last event of a request carries ``finish``; exactly one does.

    A stop token is included in ``token_ids`` of the finishing event and counted in usage; the caller does not show it.
    Times are ``time.monotonic()`` seconds in the engine; they are set on the events where they become known.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish: FinishReason | None = None
    cached_tokens: int = 0
    enqueued_at: float | None = None
    first_scheduled_at: float | None = None
    emitted_at: float | None = None
    preemptions: int = 0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine is doing now. Blocks: ``free + cached + used == total``; ``cached`` is kept for reuse and may be reclaimed."""

    epoch: int
    running: int
    waiting: int
    waiting_tokens: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_used: int
    preemptions: int
    steps: int
    stale_outputs: int = 0
    heartbeat_age_seconds: float = 0.0


class LoadedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter the engine applied: the files it read (relative to the adapter's folder), how, and what it was trained on."""

    name: str
    mode: str
    files: list[LoadedFile]
    lineage: dict[str, str] = {}


class EngineIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What was loaded, hashed while it was read: the engine's share of the manifest."""

    engine_name: str
    engine_version: str
    engine_build: str
    libraries: dict[str, str]
    architecture: str
    model_files: list[LoadedFile]
    dtype: str
    quantization_method: str
    quantization_config: dict[str, Any]
    quantized_tensors: list[str]
    kept_tensors: list[str]
    vocab_size: int
    context_limit: int
    flags: dict[str, Any]
    device_class: str
    runtime_facts: dict[str, Any]
    adapters: list[LoadedAdapter] = []


class EngineError(Exception):
    """Base of what an engine raises."""


class LoadError(EngineError):
    """What was asked for cannot be loaded; the message says which file or field and what is wrong with it. ``part`` is the
    manifest part at fault, by its JSON name (a key of ``PART_REASONS`` in the contract)."""

    def __init__(self, message: str, *, part: str = "model") -> None:
        super().__init__(message)
        self.part = part


class EngineDeadError(EngineError):
    """The engine process is gone or silent; every live request fails with it, and new ones until a new epoch starts."""


class EngineOverloadedError(EngineError):
    """The bounded queue is full; nothing was reserved."""


class RequestTooLargeError(EngineError):
    """The request can never fit (context limit or K/V blocks), however long it waits."""


class RequestInvalidError(EngineError):
    """The request cannot run at any time: ids outside the vocabulary, an empty prompt, a rule out of range."""


class DuplicateRequestError(EngineError):
    """A request with this id is live."""


class DeadlineExceededError(EngineError):
    """The request's own deadline passed while it was queued or running."""


class RequestAbortedError(EngineError):
    """The request was cancelled (by ``cancel``, drain or preemption without return)."""


class Engine(Protocol):
    """One engine, local or remote. All methods are called from the API process's event loop."""

    async def identity(self) -> EngineIdentity:
        """What was loaded. Raises ``EngineDeadError`` when the engine cannot be reached."""
        ...

    def start(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
        """Queue a request and yield its events as they come. Raises an ``EngineError`` on the first ``__anext__`` when the
        request is refused. Closing the iterator cancels the request."""
        ...

    async def cancel(self, request_id: str) -> None:
        """Stop a request; its blocks return within one step. Unknown ids are ignored."""
        ...

    async def stats(self) -> EngineStats:
        """Current counts, answered from the last report: never waits for a step."""
        ...

    async def drain(self, deadline: float) -> None:
        """Refuse new requests, return when none is left or ``deadline`` (monotonic seconds) has passed."""
        ...

    async def close(self) -> None:
        """Stop the engine and release its memory; idempotent."""
        ...
