"""What the engine core (and the in-process engine) drives: add requests, advance one step, take what came out.

``step`` is the only call that computes. It is synchronous and called from one thread; everything else is bookkeeping.
"""

from typing import TYPE_CHECKING, Protocol

import msgspec
import msgspec.structs

from pratique_server.engine.protocol import EngineError, EngineIdentity, EngineStats, ExecutionRequest, StepEvent

if TYPE_CHECKING:  # this module is read by the API process, which has no torch
    import torch


class StepFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A request the engine ended without a finish: its deadline passed, or its logits were not numbers."""

    request_id: str
    error: EngineError


class StepOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step produced. A request appears in at most one of the two lists."""

    events: list[StepEvent]
    failures: list[StepFailure]


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one engine; the client adds epoch, heartbeat age and dropped messages to make ``EngineStats``."""

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    blocks_used: int = 0
    preemptions: int = 0
    steps: int = 0

    def report(self, *, epoch: int, stale_outputs: int = 0, heartbeat_age_seconds: float = 0.0) -> EngineStats:
        """The same counts with what only the caller knows."""
        return EngineStats(
            epoch=epoch,
            stale_outputs=stale_outputs,
            heartbeat_age_seconds=heartbeat_age_seconds,
            **msgspec.structs.asdict(self),
        )


class ForcedSequence(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and the ids that are taken as chosen after it, whatever the model would choose. Neither list is empty."""

    prompt_ids: list[int]
    forced_ids: list[int]


class StepEngine(Protocol):
    """A loaded engine."""

    def identity(self) -> EngineIdentity: ...

    def add_request(self, request: ExecutionRequest) -> None:
        """Queue a request; raises an ``EngineError`` and reserves nothing when it is refused."""
        ...

    def cancel(self, request_id: str) -> bool:
        """Forget a request and free its blocks now; False when it is not live."""
        ...

    def has_work(self) -> bool: ...

    def step(self) -> StepOutput:
        """Advance by one iteration. An exception from here means the engine's state is lost."""
        ...

    def stats(self) -> StepStats: ...

    def score(self, sequences: list[ForcedSequence]) -> "list[torch.Tensor]":
        """For each sequence ``[len(forced_ids), vocabulary]`` in float32: the logits that each forced id would have been chosen
        from. Only while nothing is live: it runs beside the schedule."""
        ...

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` when the bookkeeping contradicts itself."""
        ...
