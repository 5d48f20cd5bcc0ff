"""One request as an engine holds it, and the rule that says when it has finished.

A sequence is private to the engine that owns it. What leaves the engine are the frozen events made from it.
"""

import secrets
from dataclasses import dataclass, field

from pratique_server.engine.protocol import ExecutionRequest, FinishReason, StepEvent, TokenLogprobs


@dataclass(eq=False, kw_only=True)
class Sequence:
    """A live request. ``token_ids`` is prompt then output; the K/V of its first ``num_computed`` tokens exists.

    ``arrival`` orders requests of equal rank and is kept through a preemption, so that a preempted request goes
    before every request that came later. ``seed`` is fixed here for the same reason.
    """

    request: ExecutionRequest
    arrival: int
    enqueued_at: float
    seed: int = 0
    token_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    first_scheduled_at: float | None = None
    preemptions: int = 0
    emitted: int = 0

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_ids)
        seed = self.request.sampling.seed
        self.seed = secrets.randbits(63) if seed is None else seed

    @property
    def id(self) -> str:
        return self.request.request_id

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_ids)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[len(self.request.prompt_ids) :]

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Smaller goes first: the gate's reserved requests, then smaller priority numbers, then earlier arrivals."""
        return (not self.request.reserved, self.request.priority, self.arrival)

    def append(self, token_id: int) -> FinishReason | None:
        """Take the next token; return why the request has finished, or None."""
        self.token_ids.append(token_id)
        if token_id in self.request.stop_token_ids and self.num_output > self.request.min_tokens:
            return FinishReason.STOP
        if self.num_output >= self.request.max_new_tokens:
            return FinishReason.LENGTH
        return None

    def make_event(
        self, token_id: int, logprobs: TokenLogprobs | None, finish: FinishReason | None, now: float
    ) -> StepEvent:
        """Build the event of the newest token; the first one of a request also carries the queue times."""
        first, self.emitted = self.emitted == 0, self.emitted + 1
        return StepEvent(
            request_id=self.id,
            token_ids=[token_id],
            logprobs=None if logprobs is None else [logprobs],
            finish=finish,
            enqueued_at=self.enqueued_at if first else None,
            first_scheduled_at=self.first_scheduled_at if first else None,
            emitted_at=now,
            preemptions=self.preemptions,
        )
