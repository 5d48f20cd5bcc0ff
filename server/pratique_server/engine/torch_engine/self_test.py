"""At load time, prove on this very machine that a request's numbers do not depend on its company, and say what did when they do.

One prompt is continued greedily: alone, in batches, with its prompt in chunks, beside neighbours in prefill and in decode. The rule: ids
and the logits behind each of them are bitwise those of the lonely run. Nothing is refused when they are not: such a host serves correct
answers that may differ in a near-tie, and its golden cases must run alone. The outcome stands in the manifest's runtime section.
"""

import time
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from pratique_server.engine.torch_engine.kv_storage import SequenceKv
from pratique_server.engine.torch_engine.model_runner import ModelRunner, RunItem

PROMPT_TOKENS: Final = 14
OUTPUT_TOKENS: Final = 2


@dataclass(frozen=True, kw_only=True)
class Company:
    """How the probe is run: its prompt in ``chunks``, beside ``decoding`` neighbours that take one token a step and
    ``prefilling`` ones that take ``PROMPT_TOKENS`` tokens anew in every step."""

    name: str
    chunks: tuple[int, ...]
    decoding: int = 0
    prefilling: int = 0


# 19 forward passes in all: about half a second for a small model on a quiet core.
COMPANIES: Final = (
    Company(name="alone", chunks=(14,)),
    Company(name="in three chunks", chunks=(3, 5, 6)),
    Company(name="token by token at the end", chunks=(11, 1, 1, 1)),
    Company(name="in a batch of 5", chunks=(14,), decoding=4),
    Company(name="beside a prefill", chunks=(13, 1), prefilling=1),
    Company(name="in chunks beside prefills and decodes", chunks=(5, 9), decoding=2, prefilling=2),
)


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """``differs`` says of each company that moved an id or a logit which, and where first; empty when none did."""

    runs: int
    seconds: float
    differs: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.differs

    def describe(self) -> dict[str, Any]:
        """For the manifest's runtime section."""
        return {
            "result": "passed" if self.passed else "failed",
            "runs": self.runs,
            "outputTokens": OUTPUT_TOKENS,
            "seconds": round(self.seconds, 3),
            "differs": list(self.differs),
            "goldenRequests": "in any company" if self.passed else "alone",
        }


def run_self_test(runner: ModelRunner, vocab_size: int) -> SelfTest:
    """Run every company and compare it with the first."""
    begun = time.perf_counter()
    ids, logits = _generate(runner, COMPANIES[0], vocab_size)
    differs = []
    for company in COMPANIES[1:]:
        other_ids, other_logits = _generate(runner, company, vocab_size)
        step = _first_difference(logits, other_logits)
        if other_ids != ids:
            differs.append(f"{company.name}: ids {other_ids}, alone {ids}")
        elif step is not None:
            largest = float((logits[step] - other_logits[step]).abs().max())
            differs.append(f"{company.name}: logits of token {step + 1} by up to {largest:.2g}")
    return SelfTest(runs=len(COMPANIES), seconds=time.perf_counter() - begun, differs=tuple(differs))


def _first_difference(one: list[Tensor], other: list[Tensor]) -> int | None:
    return next((step for step, (a, b) in enumerate(zip(one, other, strict=True)) if not torch.equal(a, b)), None)


def _generate(runner: ModelRunner, company: Company, vocab_size: int) -> tuple[list[int], list[Tensor]]:
    """The probe's greedy ids and the logits each was chosen from."""
    prompt = _tokens(7, vocab_size)
    cache, position = SequenceKv(), 0
    neighbours = [SequenceKv() for _ in range(company.decoding)]
    ids: list[int] = []
    chosen_from: list[Tensor] = []
    for step in range(len(company.chunks) + OUTPUT_TOKENS - 1):
        count = company.chunks[step] if step < len(company.chunks) else 1
        tokens = (prompt + ids)[position : position + count]
        items = [RunItem(cache, tokens, position, samples=True)]
        items += [RunItem(kv, [_tokens(11 + n, vocab_size)[step % PROMPT_TOKENS]], step, samples=True)
                  for n, kv in enumerate(neighbours)]  # fmt: skip
        items += [
            RunItem(SequenceKv(), _tokens(17 + n, vocab_size), 0, samples=False) for n in range(company.prefilling)
        ]
        row = runner.execute(items)[0]
        position += count
        if position >= len(prompt):
            chosen_from.append(row)
            ids.append(int(row.argmax()))
    return ids, chosen_from


def _tokens(salt: int, vocab_size: int) -> list[int]:
    return [(salt * PROMPT_TOKENS + 13 * i) % vocab_size for i in range(PROMPT_TOKENS)]
