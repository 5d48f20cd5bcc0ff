"""The naive engine: one request at a time, every token by a full forward pass of the whole sequence, no K/V
cache.

Kept slow on purpose: the baseline that benchmarks show collapsing, the reference that needs no bookkeeping to be
right, and what remains for an architecture that does not survive packing.
"""

import time
from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from pratique_server.engine.admission import Capacity, check_queue, check_request
from pratique_server.engine.errors import IntegrityError
from pratique_server.engine.protocol import (
    DeadlineExceededError,
    DuplicateRequestError,
    EngineError,
    EngineIdentity,
    ExecutionRequest,
)
from pratique_server.engine.sequence import Sequence
from pratique_server.engine.step_engine import ForcedSequence, StepFailure, StepOutput, StepStats
from pratique_server.engine.torch_engine.sampler import sample


class NaiveEngine:
    """See ``StepEngine``. The first of the live requests runs until it ends; the others wait."""

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        capacity: Capacity,
        identity: EngineIdentity,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._capacity = capacity
        self._identity = identity
        self._clock = clock
        self._live: list[Sequence] = []
        self._arrivals = 0
        self._steps = 0

    def identity(self) -> EngineIdentity:
        return self._identity

    def add_request(self, request: ExecutionRequest) -> None:
        if any(item.id == request.request_id for item in self._live):
            raise DuplicateRequestError(f"A request with the id {request.request_id} is live.")
        check_request(request, self._capacity)
        stats = self.stats()
        check_queue(
            request,
            self._capacity,
            waiting=stats.waiting,
            waiting_tokens=stats.waiting_tokens,
            free_seats=1 - stats.running,
        )
        self._arrivals += 1
        self._live.append(Sequence(request=request, arrival=self._arrivals, enqueued_at=self._clock()))
        # The running request stays first; the rest go by rank.
        self._live.sort(key=lambda item: (item.first_scheduled_at is None, item.rank))

    def cancel(self, request_id: str) -> bool:
        before = len(self._live)
        self._live = [item for item in self._live if item.id != request_id]
        return len(self._live) < before

    def has_work(self) -> bool:
        return bool(self._live)

    def step(self) -> StepOutput:
        failures = self._expire(self._clock())
        if not self._live:
            return StepOutput(events=[], failures=failures)
        self._steps += 1
        sequence = self._live[0]
        if sequence.first_scheduled_at is None:
            sequence.first_scheduled_at = self._clock()
        sampled = sample(self._logits(sequence.token_ids), [sequence])[0]
        if sampled.token_id is None:
            self._live.remove(sequence)
            error = EngineError("The model's logits were not finite numbers; no token could be chosen.")
            return StepOutput(events=[], failures=[*failures, StepFailure(request_id=sequence.id, error=error)])
        finish = sequence.append(sampled.token_id)
        if finish is not None:
            self._live.remove(sequence)
        event = sequence.make_event(sampled.token_id, sampled.logprobs, finish, self._clock())
        return StepOutput(events=[event], failures=failures)

    @torch.inference_mode()
    def _logits(self, token_ids: list[int]) -> torch.Tensor:
        device = self._model.get_input_embeddings().weight.device
        output = self._model(input_ids=torch.tensor([token_ids], device=device), use_cache=False)
        return output.logits[0, -1:].float()  # type: ignore[no-any-return]

    @torch.inference_mode()
    def score(self, sequences: list[ForcedSequence]) -> list[torch.Tensor]:
        """One full forward pass for each sequence: what every position says of the next one."""
        assert not self._live, "scoring runs beside the queue"
        device = self._model.get_input_embeddings().weight.device
        scored = []
        for sequence in sequences:
            ids = [*sequence.prompt_ids, *sequence.forced_ids[:-1]]
            output = self._model(input_ids=torch.tensor([ids], device=device), use_cache=False)
            scored.append(output.logits[0, len(sequence.prompt_ids) - 1 :].float().cpu())
        return scored

    def _expire(self, now: float) -> list[StepFailure]:
        late = [item for item in self._live if item.request.deadline is not None and item.request.deadline <= now]
        self._live = [item for item in self._live if item not in late]
        error = DeadlineExceededError("The request's deadline passed before it finished.")
        return [StepFailure(request_id=item.id, error=error) for item in late]

    def stats(self) -> StepStats:
        running = sum(1 for item in self._live if item.first_scheduled_at is not None)
        waiting = self._live[running:]
        return StepStats(
            running=running,
            waiting=len(waiting),
            waiting_tokens=sum(item.num_tokens for item in waiting),
            steps=self._steps,
        )

    def check_integrity(self) -> None:
        started = [item.first_scheduled_at is not None for item in self._live]
        if any(started[1:]):
            raise IntegrityError("More than one request runs in the naive engine.")
