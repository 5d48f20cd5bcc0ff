"""Decide what the next step computes. Pure: no torch, no clock, no randomness.

One rule covers prefill, chunked prefill, decode and recomputation after a preemption: a request still has
``num_tokens − num_computed`` tokens to compute, and a step gives it as many of them as the token budget has left.
Running requests come first, in the order in which they were admitted; then waiting ones, by rank. When a running
request finds no free block, the running request of the worst rank gives its blocks back, keeps its tokens, and
waits again at its old place. Nothing is preempted to admit: a request is admitted only when all the tokens it has
now fit, so the oldest running request always gets on, and with it everything behind it.
"""

from dataclasses import dataclass, field

from pratique_server.engine.errors import IntegrityError
from pratique_server.engine.sequence import Sequence
from pratique_server.engine.torch_engine.kv_manager import KvManager


@dataclass(frozen=True)
class ScheduledItem:
    """Compute the next ``count`` tokens of a sequence, which begin at position ``start``."""

    sequence: Sequence
    start: int
    count: int

    @property
    def samples(self) -> bool:
        """Whether this step reaches the sequence's last known token, and so yields the next one."""
        return self.start + self.count == self.sequence.num_tokens


@dataclass
class SchedulerOutput:
    """One step: what to compute, and who lost its blocks to make room."""

    items: list[ScheduledItem] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Owns the waiting and the running requests. ``max_num_seqs`` bounds the running ones, ``max_batched_tokens``
    a step."""

    def __init__(self, kv: KvManager, *, max_num_seqs: int, max_batched_tokens: int) -> None:
        self._kv = kv
        self._max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda item: item.rank)

    @property
    def free_seats(self) -> int:
        """How many more requests may run."""
        return self._max_num_seqs - len(self.running)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, finished or not; its blocks are free when this returns."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self._kv.free(sequence.id)

    def schedule(self) -> SchedulerOutput:
        """Choose the next step. Blocks for it are allocated when this returns; ``update`` must follow."""
        output = SchedulerOutput()
        budget = self._schedule_running(output, self._max_batched_tokens)
        if not output.preempted:
            self._schedule_waiting(output, budget)
        return output

    def update(self, output: SchedulerOutput) -> None:
        """Note that the step was computed."""
        for item in output.items:
            item.sequence.num_computed = item.start + item.count

    def _schedule_running(self, output: SchedulerOutput, budget: int) -> int:
        for sequence in list(self.running):
            if sequence in output.preempted:
                continue
            count = min(sequence.num_tokens - sequence.num_computed, budget)
            if count == 0:
                continue
            while not self._kv.allocate(sequence.id, sequence.num_computed + count):
                budget += self._preempt(output)
                if sequence in output.preempted:
                    break
            else:
                output.items.append(ScheduledItem(sequence, sequence.num_computed, count))
                budget -= count
        return budget

    def _preempt(self, output: SchedulerOutput) -> int:
        """Send the running request of the worst rank back to waiting; return the budget it had in this step."""
        victim = max(self.running, key=lambda item: item.rank)
        refund = sum(item.count for item in output.items if item.sequence is victim)
        output.items = [item for item in output.items if item.sequence is not victim]
        output.preempted.append(victim)
        self.running.remove(victim)
        self._kv.free(victim.id)
        victim.num_computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        self.add(victim)
        return refund

    def _schedule_waiting(self, output: SchedulerOutput, budget: int) -> None:
        while self.waiting and budget > 0 and self.free_seats > 0:
            sequence = self.waiting[0]
            if not self._kv.can_allocate(self._blocks_owed() + sequence.num_tokens):
                return
            count = min(sequence.num_tokens, budget)
            if not self._kv.allocate(sequence.id, count):
                raise IntegrityError(f"Request {sequence.id} was admitted, but its blocks were gone.")
            self.waiting.pop(0)
            self.running.append(sequence)
            output.items.append(ScheduledItem(sequence, 0, count))
            budget -= count

    def _blocks_owed(self) -> int:
        """Tokens' worth of blocks that running requests need to finish their prompts and do not hold yet."""
        return sum(
            (self._kv.blocks_for(item.num_tokens) - len(self._kv.table(item.id))) * self._kv.block_size
            for item in self.running
        )

    def check_integrity(self) -> None:
        if len(self.running) > self._max_num_seqs:
            raise IntegrityError(f"{len(self.running)} requests run; the limit is {self._max_num_seqs}.")
        if both := {item.id for item in self.running} & {item.id for item in self.waiting}:
            raise IntegrityError(f"Requests run and wait at once: {sorted(both)}.")
        if any(item.num_computed for item in self.waiting):
            raise IntegrityError("A waiting request claims computed tokens.")
        self._kv.check_integrity((item.id, item.num_computed) for item in self.running)
