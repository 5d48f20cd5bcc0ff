"""Block pool and block tables: every block has one owner, and a lie about that is found at once."""

import pytest

from pratique_server.engine.errors import IntegrityError
from pratique_server.engine.torch_engine.block_pool import BlockPool
from pratique_server.engine.torch_engine.kv_manager import KvManager


def test_allocates_all_or_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) is not None
    assert pool.allocate(2) is None
    assert (pool.num_free, pool.num_used) == (1, 3)


def test_reuses_the_block_freed_longest_ago() -> None:
    pool = BlockPool(3)
    first = pool.allocate(3)
    assert first is not None
    pool.free([first[2]])
    pool.free([first[0]])
    assert pool.allocate(2) == [first[2], first[0]]


def test_refuses_to_free_a_block_twice() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.free(blocks)
    with pytest.raises(IntegrityError, match="not in use"):
        pool.free(blocks)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (160, 10)])
def test_a_table_has_exactly_the_blocks_its_tokens_need(tokens: int, blocks: int) -> None:
    kv = KvManager(total_blocks=10, block_size=16)
    assert kv.allocate("a", tokens)
    assert len(kv.table("a")) == blocks


def test_growing_keeps_the_blocks_that_are_there() -> None:
    kv = KvManager(total_blocks=4, block_size=2)
    assert kv.allocate("a", 3)
    before = kv.table("a")
    assert kv.allocate("a", 5)
    assert kv.table("a")[:2] == before


def test_a_failed_allocation_changes_nothing() -> None:
    kv = KvManager(total_blocks=3, block_size=2)
    assert kv.allocate("a", 4)
    assert not kv.allocate("b", 3)
    assert kv.table("b") == ()
    kv.check_integrity([("a", 4)])


@pytest.mark.req("R43", "R47")
def test_integrity_check_finds_a_leak_a_shared_block_and_a_freed_block_in_a_table() -> None:
    """vllm#46283: blocks that nobody holds any more. The check names each kind of lie."""
    leak = KvManager(total_blocks=4, block_size=2)
    leak.allocate("a", 2)
    leak._tables.clear()
    with pytest.raises(IntegrityError, match="leaked"):
        leak.check_integrity([])

    shared = KvManager(total_blocks=4, block_size=2)
    shared.allocate("a", 2)
    shared._tables["b"] = list(shared.table("a"))
    with pytest.raises(IntegrityError, match="same block"):
        shared.check_integrity([("a", 2), ("b", 2)])

    stale = KvManager(total_blocks=4, block_size=2)
    stale.allocate("a", 2)
    stale.pool.free(list(stale.table("a")))
    with pytest.raises(IntegrityError, match="freed blocks"):
        stale.check_integrity([("a", 2)])


def test_integrity_check_finds_a_table_without_a_request_and_tokens_without_a_block() -> None:
    kv = KvManager(total_blocks=4, block_size=2)
    kv.allocate("a", 2)
    with pytest.raises(IntegrityError, match="differ"):
        kv.check_integrity([])
    with pytest.raises(IntegrityError, match="without a block"):
        kv.check_integrity([("a", 3)])
