"""Logits of given tokens (teacher forcing), computed as the engine computes when it serves: prefill in chunks, then one token a step,
several sequences packed together. Beside the schedule, so only while nothing is live: reviews use it, serving does not."""

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from pratique_server.engine.step_engine import ForcedSequence
from pratique_server.engine.torch_engine.kv_storage import SequenceKv
from pratique_server.engine.torch_engine.model_runner import ModelRunner, RunItem

CHUNK_TOKENS: Final = 256
SEQUENCES_MAX: Final = 8


def score(runner: ModelRunner, sequences: list[ForcedSequence]) -> list[Tensor]:
    """For each sequence ``[len(forced_ids), vocabulary]`` (float32, on the CPU): row ``i`` is what forced id ``i`` was chosen from."""
    groups = [sequences[i : i + SEQUENCES_MAX] for i in range(0, len(sequences), SEQUENCES_MAX)]
    return [rows for group in groups for rows in _score_together(runner, group)]


def _score_together(runner: ModelRunner, group: list[ForcedSequence]) -> list[Tensor]:
    caches = [SequenceKv() for _ in group]
    rows: list[list[Tensor]] = [[] for _ in group]
    for index, (cache, sequence) in enumerate(zip(caches, group, strict=True)):
        for item in _prefill(cache, sequence.prompt_ids):
            logits = runner.execute([item])
            if item.samples:
                rows[index].append(logits[0].cpu())
    for step in range(max(len(sequence.forced_ids) for sequence in group) - 1):
        live = [index for index, sequence in enumerate(group) if step + 1 < len(sequence.forced_ids)]
        items = [
            RunItem(caches[i], [group[i].forced_ids[step]], len(group[i].prompt_ids) + step, samples=True) for i in live
        ]
        for index, logits in zip(live, runner.execute(items), strict=True):
            rows[index].append(logits.cpu())
    return [torch.stack(found) for found in rows]


def _prefill(cache: SequenceKv, prompt_ids: list[int]) -> Iterator[RunItem]:
    for start in range(0, len(prompt_ids), CHUNK_TOKENS):
        chunk = prompt_ids[start : start + CHUNK_TOKENS]
        yield RunItem(cache, chunk, start, samples=start + len(chunk) == len(prompt_ids))
