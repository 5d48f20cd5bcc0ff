"""What each step computes, as tables: (request, first position, count)."""

import pytest

from pratique_server.engine.sequence import Sequence
from pratique_server.engine.torch_engine.kv_manager import KvManager
from pratique_server.engine.torch_engine.scheduler import Scheduler
from tests.unit.server.engine.makers import make_sequence


def make_scheduler(*, blocks: int = 100, block_size: int = 4, seqs: int = 8, budget: int = 16) -> Scheduler:
    kv = KvManager(total_blocks=blocks, block_size=block_size)
    return Scheduler(kv, max_num_seqs=seqs, max_batched_tokens=budget)


def advance(scheduler: Scheduler) -> list[tuple[str, int, int]]:
    """One step in which every sampling request gets a token and none finishes."""
    output = scheduler.schedule()
    scheduler.check_integrity()
    plan = [(item.sequence.id, item.start, item.count) for item in output.items]
    sampling = [item.sequence for item in output.items if item.samples]
    scheduler.update(output)
    for sequence in sampling:
        sequence.token_ids.append(9)
    return plan


def ids(sequences: list[Sequence]) -> list[str]:
    return [sequence.id for sequence in sequences]


@pytest.mark.req("R40", "R41")
def test_a_long_prompt_is_cut_into_chunks_and_shares_steps_with_decodes() -> None:
    scheduler = make_scheduler(budget=8)
    scheduler.add(make_sequence("a", arrival=1, prompt=4))
    scheduler.add(make_sequence("b", arrival=2, prompt=14))
    assert advance(scheduler) == [("a", 0, 4), ("b", 0, 4)]
    assert advance(scheduler) == [("a", 4, 1), ("b", 4, 7)]
    assert advance(scheduler) == [("a", 5, 1), ("b", 11, 3)]
    assert advance(scheduler) == [("a", 6, 1), ("b", 14, 1)]


def test_running_requests_come_before_waiting_ones() -> None:
    scheduler = make_scheduler(budget=4)
    scheduler.add(make_sequence("old", arrival=1, prompt=10))
    advance(scheduler)
    scheduler.add(make_sequence("urgent", arrival=2, prompt=2, priority=-5))
    assert advance(scheduler) == [("old", 4, 4)]
    assert advance(scheduler) == [("old", 8, 2), ("urgent", 0, 2)]


def test_waiting_requests_go_by_reservation_then_priority_then_arrival() -> None:
    scheduler = make_scheduler(seqs=1)
    scheduler.add(make_sequence("late", arrival=4))
    scheduler.add(make_sequence("early", arrival=1))
    scheduler.add(make_sequence("urgent", arrival=3, priority=-1))
    scheduler.add(make_sequence("gate", arrival=5, reserved=True))
    assert ids(scheduler.waiting) == ["gate", "urgent", "early", "late"]
    assert advance(scheduler) == [("gate", 0, 4)]


def test_no_more_run_than_allowed() -> None:
    scheduler = make_scheduler(seqs=2)
    for arrival in range(4):
        scheduler.add(make_sequence(f"r{arrival}", arrival=arrival))
    advance(scheduler)
    assert ids(scheduler.running) == ["r0", "r1"]


def test_preempts_newest_when_no_block_is_free() -> None:
    """vllm#16832: a preempted request keeps its tokens, loses its blocks, and its state says so."""
    scheduler = make_scheduler(blocks=4, block_size=4)
    old, new = make_sequence("old", arrival=1, prompt=8), make_sequence("new", arrival=2, prompt=8)
    scheduler.add(old)
    scheduler.add(new)
    advance(scheduler)
    assert advance(scheduler) == [("old", 8, 1)]
    assert (ids(scheduler.running), ids(scheduler.waiting)) == (["old"], ["new"])
    assert (new.num_computed, new.num_tokens, new.preemptions) == (0, 9, 1)
    assert scheduler.preemptions == 1


def test_preempts_the_least_urgent_even_when_it_is_older() -> None:
    scheduler = make_scheduler(blocks=4, block_size=4)
    scheduler.add(make_sequence("lax", arrival=1, prompt=7, priority=5))
    advance(scheduler)
    scheduler.add(make_sequence("urgent", arrival=2, prompt=8))
    assert advance(scheduler) == [("lax", 7, 1), ("urgent", 0, 8)]
    assert advance(scheduler) == [("urgent", 8, 1)]
    assert ids(scheduler.waiting) == ["lax"]


def test_a_preempted_request_waits_before_all_that_came_later() -> None:
    scheduler = make_scheduler(blocks=4, block_size=4, seqs=2)
    for arrival, name in enumerate(["a", "b", "c"]):
        scheduler.add(make_sequence(name, arrival=arrival, prompt=8))
    advance(scheduler)
    advance(scheduler)
    assert ids(scheduler.waiting) == ["b", "c"]


def test_never_preempts_to_admit() -> None:
    scheduler = make_scheduler(blocks=4, block_size=4)
    scheduler.add(make_sequence("a", arrival=1, prompt=10))
    advance(scheduler)
    scheduler.add(make_sequence("gate", arrival=2, prompt=8, reserved=True))
    assert advance(scheduler) == [("a", 10, 1)]
    assert (ids(scheduler.running), scheduler.preemptions) == (["a"], 0)


def test_admits_only_what_fits_whole_beside_the_prompts_still_being_read() -> None:
    """A prompt admitted by its first chunk alone would later push others out, or be pushed out itself, again and again."""
    scheduler = make_scheduler(blocks=6, block_size=4, budget=8)
    scheduler.add(make_sequence("a", arrival=1, prompt=16))
    advance(scheduler)
    scheduler.add(make_sequence("b", arrival=2, prompt=12))
    assert advance(scheduler) == [("a", 8, 8)]
    assert ids(scheduler.waiting) == ["b"]


def test_a_request_that_does_not_fit_holds_back_those_behind_it() -> None:
    """Otherwise small requests could keep a large one waiting for ever."""
    scheduler = make_scheduler(blocks=4, block_size=4)
    scheduler.add(make_sequence("a", arrival=1, prompt=8))
    advance(scheduler)
    scheduler.add(make_sequence("large", arrival=2, prompt=12))
    scheduler.add(make_sequence("small", arrival=3, prompt=2))
    assert advance(scheduler) == [("a", 8, 1)]


@pytest.mark.req("R48")
def test_removing_a_request_frees_its_blocks_at_once() -> None:
    scheduler = make_scheduler()
    running, waiting = make_sequence("a", arrival=1), make_sequence("b", arrival=2)
    scheduler.add(running)
    advance(scheduler)
    scheduler.add(waiting)
    scheduler.remove(running)
    scheduler.remove(waiting)
    assert scheduler._kv.pool.num_used == 0
    assert advance(scheduler) == []
