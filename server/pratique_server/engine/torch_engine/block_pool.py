"""The fixed number of K/V blocks and who has them: each block is free or used, never both, never neither. Pure."""

from collections import deque

from pratique_server.engine.errors import IntegrityError


class BlockPool:
    """Hands out block numbers ``0 … total − 1``; the block freed longest ago is given first."""

    def __init__(self, total: int) -> None:
        assert total > 0
        self.total = total
        self._free = deque(range(total))
        self._used: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._used)

    def allocate(self, count: int) -> list[int] | None:
        """Take ``count`` blocks, or none at all when there are not enough."""
        if count > len(self._free):
            return None
        blocks = [self._free.popleft() for _ in range(count)]
        self._used.update(blocks)
        return blocks

    def free(self, blocks: list[int]) -> None:
        """Give blocks back. A block that is not in use is given back twice: a bug, found here and not in
        someone's answer."""
        for block in blocks:
            if block not in self._used:
                raise IntegrityError(f"Block {block} was freed but not in use.")
            self._used.remove(block)
            self._free.append(block)

    def check_integrity(self) -> None:
        free = set(self._free)
        if len(free) != len(self._free):
            raise IntegrityError("A block is in the free queue twice.")
        if free & self._used:
            raise IntegrityError(f"Blocks are free and used at once: {sorted(free & self._used)}.")
        if len(free) + len(self._used) != self.total:
            raise IntegrityError(f"{len(free)} free and {len(self._used)} used blocks are not {self.total}.")

    def is_used(self, block: int) -> bool:
        return block in self._used
