"""After the golden requests every K/V block they held must be free again: a pod that leaks on its first requests will not
last a day. ``free + cached + used`` must equal the total at every look."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pratique_contract.reasons import Reason
from pratique_server.engine.protocol import EngineStats
from pratique_server.gate.errors import CheckFailedError

RETURN_SECONDS_MAX: Final = 5.0
LOOK_EVERY_SECONDS: Final = 0.05
# The counts are the engine's last report: one look may still show the time before the last request.
CALM_LOOKS: Final = 3

ReadStats = Callable[[], Awaitable[EngineStats]]
Sleep = Callable[[float], Awaitable[None]]


def check_accounts(stats: EngineStats) -> None:
    """Raises ``CheckFailedError`` when the engine's block counts contradict each other."""
    counted = stats.blocks_free + stats.blocks_cached + stats.blocks_used
    if counted != stats.blocks_total:
        raise CheckFailedError(
            Reason.BLOCKS_LEAKED,
            f"{stats.blocks_free} free + {stats.blocks_cached} cached + {stats.blocks_used} used blocks are {counted}, "
            f"not the total of {stats.blocks_total}",
            expected=str(stats.blocks_total),
            observed=str(counted),
        )


async def wait_for_blocks(read_stats: ReadStats, baseline: EngineStats, *, sleep: Sleep = asyncio.sleep) -> str:
    """Return once the blocks in use are back at the baseline; raises ``CheckFailedError`` when they are not in time."""
    calm = 0
    for _ in range(round(RETURN_SECONDS_MAX / LOOK_EVERY_SECONDS)):
        stats = await read_stats()
        check_accounts(stats)
        # An engine that took the requests has made steps since; until it says so the report is an old one.
        back = stats.steps > baseline.steps and stats.blocks_used <= baseline.blocks_used
        calm = calm + 1 if back else 0
        if calm >= CALM_LOOKS:
            return f"{stats.blocks_used} of {stats.blocks_total} blocks in use, as before"
        await sleep(LOOK_EVERY_SECONDS)
    raise CheckFailedError(
        Reason.BLOCKS_LEAKED,
        f"{stats.blocks_used} K/V blocks are still in use {RETURN_SECONDS_MAX:g} s after the golden requests, "
        f"{baseline.blocks_used} were before",
        expected=str(baseline.blocks_used),
        observed=str(stats.blocks_used),
    )
