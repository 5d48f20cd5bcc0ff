"""Golden cases in company: all at once, beside a neighbour whose rules are the opposite of theirs. Alone, a request cannot show that
another one's logits, cache or sampling rules reach into it.

The neighbour begins first and would go on longer than the cases; a second one comes after them. They are sampled hot, ban the very
tokens the cases are about to say, and know them as stop ids: whatever of them leaks changes a golden answer. At the end they are dropped
in the middle of their answers, so the check of the blocks that follows also proves that a cancelled request gives back what it held.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pratique_contract.golden import GoldenCase
from pratique_contract.manifest import ReleaseManifest
from pratique_server.gate.cases import CaseRunner
from pratique_server.gate.errors import CheckFailedError

NEIGHBOURS: Final = ("neighbour", "late-neighbour")
NEIGHBOUR_TOKENS_MAX: Final = 256
BANNED_MAX: Final = 64
# One request at a time has no company; on a host whose numbers depend on company, rounding is allowed as between devices.
_ALONE: Final = "notNeeded"
_PASSED: Final = "passed"


@dataclass(frozen=True, kw_only=True)
class Invariance:
    """What the engine's self-test of batch and chunk invariance found on this host."""

    has_company: bool
    is_exact: bool

    @classmethod
    def of(cls, manifest: ReleaseManifest) -> "Invariance":
        test = manifest.runtime.facts.get("selfTest")
        result = test.get("result") if isinstance(test, Mapping) else _PASSED
        return cls(has_company=result != _ALONE, is_exact=result == _PASSED)


async def run_in_company(
    runner: CaseRunner, cases: Sequence[GoldenCase], *, invariance: Invariance, output_tokens_max: int | None
) -> str:
    """Raises ``CheckFailedError`` when an answer is another than it was alone. ``output_tokens_max`` is the server's own limit."""
    if not invariance.has_company:
        return "one request at a time: there is no company"
    begun = asyncio.Event()
    room = _room(cases, output_tokens_max)
    first, late = NEIGHBOURS
    neighbours = [asyncio.create_task(_keep_busy(runner, cases, first, room, begun))]
    together: list[asyncio.Task[None]] = []
    try:
        await _until(begun, neighbours[0])
        together = [asyncio.create_task(runner.run_again(case, exact=invariance.is_exact)) for case in cases]
        neighbours.append(asyncio.create_task(_keep_busy(runner, cases, late, room, asyncio.Event())))
        for task in together:
            await task
        for neighbour in neighbours:
            if neighbour.done():
                neighbour.result()
    except CheckFailedError as error:
        raise error.of("Beside other requests") from error
    finally:
        for task in (*neighbours, *together):
            task.cancel()
        await asyncio.gather(*neighbours, *together, return_exceptions=True)
    return f"{len(cases)} cases at once, beside requests with other rules"


async def _until(begun: asyncio.Event, neighbour: "asyncio.Task[None]") -> None:
    """Return once the neighbour's answer has begun, or it has ended for whatever reason."""
    waiting = asyncio.create_task(begun.wait())
    try:
        await asyncio.wait({waiting, neighbour}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def _room(cases: Sequence[GoldenCase], output_tokens_max: int | None) -> int:
    """Output tokens of a neighbour: no more than the largest golden case takes in all, since that much is known to fit."""
    shortest = min(len(case.prompt_ids) for case in cases)
    room = max(len(case.prompt_ids) + case.max_tokens for case in cases) - shortest
    return min(NEIGHBOUR_TOKENS_MAX, room, output_tokens_max or room)


async def _keep_busy(
    runner: CaseRunner, cases: Sequence[GoldenCase], name: str, max_tokens: int, begun: asyncio.Event
) -> None:
    shortest = min(cases, key=lambda case: len(case.prompt_ids))
    await runner.keep_busy(
        messages=shortest.messages, max_tokens=max_tokens, name=name, rules=_opposite_rules(cases), begun=begun
    )


def _opposite_rules(cases: Sequence[GoldenCase]) -> dict[str, Any]:
    """Fields of a request that any golden answer would suffer from. Each case's first tokens are banned, fairly: some of every case."""
    said = [output.ids for case in cases for output in case.outputs[:1]]
    by_turn = [ids[step] for step in range(max(map(len, said))) for ids in said if step < len(ids)]
    banned = list(dict.fromkeys(by_turn))[:BANNED_MAX]
    return {
        "temperature": 2,
        "top_p": 0.9,
        "presence_penalty": 2,
        "frequency_penalty": 2,
        "repetition_penalty": 2,
        "seed": 1,
        "logit_bias": {str(token): -100 for token in banned},
        "stop_token_ids": banned,
        "ignore_eos": True,
    }
