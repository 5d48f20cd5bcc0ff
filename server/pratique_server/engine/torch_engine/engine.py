"""The torch engine: schedule → run → sample → events, one step at a time.

Owner of every request between ``add_request`` and its last event. ``step`` reads from top to bottom; policy is in
the scheduler, numbers are in the runner and the sampler. When nothing is live the bookkeeping is checked, so a
leak is found by the engine itself and not by the next outage.
"""

import time
from collections.abc import Callable

from torch import Tensor

from pratique_server.engine.admission import Capacity, check_queue, check_request
from pratique_server.engine.errors import IntegrityError
from pratique_server.engine.protocol import (
    DeadlineExceededError,
    DuplicateRequestError,
    EngineError,
    EngineIdentity,
    ExecutionRequest,
    StepEvent,
)
from pratique_server.engine.sequence import Sequence
from pratique_server.engine.step_engine import ForcedSequence, StepFailure, StepOutput, StepStats
from pratique_server.engine.torch_engine.kv_manager import KvManager
from pratique_server.engine.torch_engine.kv_storage import SequenceKv
from pratique_server.engine.torch_engine.model_runner import ModelRunner, RunItem
from pratique_server.engine.torch_engine.sampler import Sampled, sample
from pratique_server.engine.torch_engine.scheduler import Scheduler, SchedulerOutput
from pratique_server.engine.torch_engine.scoring import score

Clock = Callable[[], float]


class TorchEngine:
    """See ``StepEngine``. ``poison_freed`` (tests) overwrites freed K/V with not-a-number."""

    def __init__(
        self,
        *,
        runner: ModelRunner,
        kv: KvManager,
        scheduler: Scheduler,
        capacity: Capacity,
        identity: EngineIdentity,
        clock: Clock = time.monotonic,
        poison_freed: bool = False,
    ) -> None:
        self._runner = runner
        self._kv = kv
        self._scheduler = scheduler
        self._capacity = capacity
        self._identity = identity
        self._clock = clock
        self._poison_freed = poison_freed
        self._live: dict[str, Sequence] = {}
        self._storage: dict[str, SequenceKv] = {}
        self._arrivals = 0
        self._steps = 0

    def identity(self) -> EngineIdentity:
        return self._identity

    def add_request(self, request: ExecutionRequest) -> None:
        if request.request_id in self._live:
            raise DuplicateRequestError(f"A request with the id {request.request_id} is live.")
        check_request(request, self._capacity)
        waiting = self._scheduler.waiting
        check_queue(
            request,
            self._capacity,
            waiting=len(waiting),
            waiting_tokens=sum(item.num_tokens for item in waiting),
            free_seats=self._scheduler.free_seats,
        )
        self._arrivals += 1
        sequence = Sequence(request=request, arrival=self._arrivals, enqueued_at=self._clock())
        self._live[request.request_id] = sequence
        self._scheduler.add(sequence)

    def cancel(self, request_id: str) -> bool:
        sequence = self._live.get(request_id)
        if sequence is None:
            return False
        self._forget(sequence)
        return True

    def has_work(self) -> bool:
        return bool(self._live)

    def step(self) -> StepOutput:
        failures = self._expire(self._clock())
        events: list[StepEvent] = []
        if self._live:
            self._steps += 1
            plan = self._schedule()
            sampling = [item.sequence for item in plan.items if item.samples]
            logits = self._runner.execute(self._run_items(plan))
            self._scheduler.update(plan)
            for sequence, sampled in zip(sampling, sample(logits, sampling), strict=True):
                self._take(sequence, sampled, events, failures)
        if not self._live:
            self.check_integrity()
        return StepOutput(events=events, failures=failures)

    def _expire(self, now: float) -> list[StepFailure]:
        late = [
            item for item in self._live.values() if item.request.deadline is not None and item.request.deadline <= now
        ]
        for sequence in late:
            self._forget(sequence)
        error = DeadlineExceededError("The request's deadline passed before it finished.")
        return [StepFailure(request_id=sequence.id, error=error) for sequence in late]

    def _schedule(self) -> SchedulerOutput:
        plan = self._scheduler.schedule()
        if not plan.items:
            raise IntegrityError(f"{len(self._live)} requests are live, but none can be scheduled.")
        for sequence in plan.preempted:
            self._drop_storage(sequence)
        now = self._clock()
        for item in plan.items:
            if item.sequence.first_scheduled_at is None:
                item.sequence.first_scheduled_at = now
        return plan

    def _run_items(self, plan: SchedulerOutput) -> list[RunItem]:
        return [
            RunItem(
                kv=self._storage.setdefault(item.sequence.id, SequenceKv()),
                token_ids=item.sequence.token_ids[item.start : item.start + item.count],
                start=item.start,
                samples=item.samples,
            )
            for item in plan.items
        ]

    def _take(self, sequence: Sequence, sampled: Sampled, events: list[StepEvent], failures: list[StepFailure]) -> None:
        if sampled.token_id is None:
            self._forget(sequence)
            error = EngineError("The model's logits were not finite numbers; no token could be chosen.")
            failures.append(StepFailure(request_id=sequence.id, error=error))
            return
        finish = sequence.append(sampled.token_id)
        if finish is not None:
            self._forget(sequence)
        events.append(sequence.make_event(sampled.token_id, sampled.logprobs, finish, self._clock()))

    def _forget(self, sequence: Sequence) -> None:
        del self._live[sequence.id]
        self._scheduler.remove(sequence)
        self._drop_storage(sequence)

    def _drop_storage(self, sequence: Sequence) -> None:
        storage = self._storage.pop(sequence.id, None)
        if storage is not None:
            storage.release(poison=self._poison_freed)

    def stats(self) -> StepStats:
        pool, waiting = self._kv.pool, self._scheduler.waiting
        return StepStats(
            running=len(self._scheduler.running),
            waiting=len(waiting),
            waiting_tokens=sum(item.num_tokens for item in waiting),
            blocks_total=pool.total,
            blocks_free=pool.num_free,
            blocks_used=pool.num_used,
            preemptions=self._scheduler.preemptions,
            steps=self._steps,
        )

    def score(self, sequences: list[ForcedSequence]) -> list[Tensor]:
        assert not self._live, "scoring runs beside the schedule"
        return score(self._runner, sequences)

    def check_integrity(self) -> None:
        """Blocks, tables, requests and stored K/V must name each other and nothing else."""
        self._scheduler.check_integrity()
        known = {item.id for item in (*self._scheduler.running, *self._scheduler.waiting)}
        if known != set(self._live):
            raise IntegrityError(f"Scheduler and engine know different requests: {sorted(known ^ set(self._live))}.")
        if stray := set(self._storage) - self._kv.holders():
            raise IntegrityError(f"K/V is stored for requests that hold no blocks: {sorted(stray)}.")
