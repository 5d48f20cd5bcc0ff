"""Which blocks each request has: its block table grows with its computed tokens and goes back whole. Pure.

A table always has exactly enough blocks for the tokens it was last allocated for: ``ceil(tokens / block_size)``.
"""

from collections.abc import Iterable

from pratique_server.engine.errors import IntegrityError
from pratique_server.engine.torch_engine.block_pool import BlockPool


class KvManager:
    """Block tables by request id over one pool."""

    def __init__(self, *, total_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(total_blocks)
        self.block_size = block_size
        self._tables: dict[str, list[int]] = {}

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether a request without blocks could have this many tokens now."""
        return self.blocks_for(num_tokens) <= self.pool.num_free

    def allocate(self, request_id: str, num_tokens: int) -> bool:
        """Grow the request's table to hold ``num_tokens``; False, and nothing changed, when too few blocks are free."""
        table = self._tables.get(request_id, [])
        blocks = self.pool.allocate(max(0, self.blocks_for(num_tokens) - len(table)))
        if blocks is None:
            return False
        self._tables[request_id] = table + blocks
        return True

    def free(self, request_id: str) -> None:
        """Give the request's blocks back, last first, so that the start of a sequence is reused last."""
        self.pool.free(self._tables.pop(request_id, [])[::-1])

    def table(self, request_id: str) -> tuple[int, ...]:
        return tuple(self._tables.get(request_id, ()))

    def holders(self) -> set[str]:
        return set(self._tables)

    def check_integrity(self, tokens_of: Iterable[tuple[str, int]]) -> None:
        """Check the tables against the running requests, given as (id, computed tokens)."""
        self.pool.check_integrity()
        named = [block for table in self._tables.values() for block in table]
        if len(named) != len(set(named)):
            raise IntegrityError("Two block tables name the same block.")
        if stray := [block for block in named if not self.pool.is_used(block)]:
            raise IntegrityError(f"A block table names freed blocks: {sorted(stray)}.")
        if len(named) != self.pool.num_used:
            raise IntegrityError(f"{self.pool.num_used - len(named)} used blocks are in no table: they leaked.")
        expected = dict(tokens_of)
        if set(self._tables) != set(expected):
            raise IntegrityError(f"Tables and running requests differ: {sorted(set(self._tables) ^ set(expected))}.")
        for request_id, num_tokens in expected.items():
            if len(self._tables[request_id]) < self.blocks_for(num_tokens):
                raise IntegrityError(f"Request {request_id} has computed tokens without a block.")
