"""Random histories of the scheduler: whatever arrives, is cancelled or finishes, the blocks add up and everybody gets on."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pratique_server.engine.sequence import Sequence
from pratique_server.engine.torch_engine.kv_manager import KvManager
from pratique_server.engine.torch_engine.scheduler import Scheduler
from tests.unit.server.engine.makers import make_sequence

BLOCKS, BLOCK_SIZE, SEQS, BUDGET = 9, 4, 3, 7


class SchedulerMachine(RuleBasedStateMachine):
    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.kv = KvManager(total_blocks=BLOCKS, block_size=BLOCK_SIZE)
        self.scheduler = Scheduler(self.kv, max_num_seqs=SEQS, max_batched_tokens=BUDGET)
        self.sequences: dict[str, Sequence] = {}
        self.arrivals = 0

    @rule(
        target=live,
        prompt=st.integers(1, 20),
        output=st.integers(1, 16),
        priority=st.integers(-1, 1),
        reserved=st.booleans(),
    )
    def add(self, prompt: int, output: int, priority: int, reserved: bool) -> str:
        self.arrivals += 1
        name = f"r{self.arrivals}"
        sequence = make_sequence(
            name, arrival=self.arrivals, prompt=prompt, max_new_tokens=output, priority=priority, reserved=reserved
        )
        self.sequences[name] = sequence
        self.scheduler.add(sequence)
        return name

    @rule(name=consumes(live))
    def cancel(self, name: str) -> None:
        if sequence := self.sequences.pop(name, None):
            self.scheduler.remove(sequence)

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.advance()

    def advance(self) -> None:
        output = self.scheduler.schedule()
        if not self.sequences:
            assert not output.items
            return
        assert output.items, "live requests, but nothing to compute"
        assert sum(item.count for item in output.items) <= BUDGET
        for item in output.items:
            assert item.count > 0
            assert item.start == item.sequence.num_computed, "a token was skipped or computed twice"
            assert item.start + item.count <= item.sequence.num_tokens
            assert len(self.kv.table(item.sequence.id)) * BLOCK_SIZE >= item.start + item.count
        sampling = [item.sequence for item in output.items if item.samples]
        self.scheduler.update(output)
        for sequence in sampling:
            if sequence.append(1) is not None:
                self.scheduler.remove(sequence)
                del self.sequences[sequence.id]

    @invariant()
    def bookkeeping_is_sound(self) -> None:
        self.scheduler.check_integrity()

    @invariant()
    def no_request_is_lost(self) -> None:
        known = {item.id for item in (*self.scheduler.running, *self.scheduler.waiting)}
        assert known == set(self.sequences)

    def teardown(self) -> None:
        """Every history ends: each live request finishes within a bounded number of steps, and all blocks come back."""
        for _ in range(5_000):
            if not self.sequences:
                break
            self.advance()
        assert not self.sequences, "requests starve"
        assert self.kv.pool.num_free == BLOCKS


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
