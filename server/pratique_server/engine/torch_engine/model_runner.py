"""Run one scheduled step through the model: items in, logits of the rows that yield a token out.

The tokens of all items are packed into one row. Only the rows that sample reach the language head. Both the token
rows and the head's rows are padded to at least ``min_rows``: matrix products with fewer rows take another path in
the CPU library and round differently.
"""

import inspect
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pratique_server.engine.torch_engine.attention import ATTENTION_NAME, PackedBatch, Segment, attend_within
from pratique_server.engine.torch_engine.kv_storage import SequenceKv

ROWS_PER_THREAD: Final = 4
MIN_ROWS_MAX: Final = 64


def min_rows(dtype: torch.dtype, threads: int) -> int:
    """Fewest rows of a matrix product for which a row's result does not depend on how many rows there are.
    Measured: the float32 kernels split the rows over the threads and need four for each; the 16-bit ones need
    four in all."""
    return min(MIN_ROWS_MAX, ROWS_PER_THREAD * threads) if dtype is torch.float32 else ROWS_PER_THREAD


@dataclass(frozen=True)
class RunItem:
    """Tokens of one sequence from position ``start`` on, and whether the last of them yields the next token."""

    kv: SequenceKv
    token_ids: list[int]
    start: int
    samples: bool


class ModelRunner:
    """Owns the model's switch to packed attention. One call at a time."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        weight = model.get_input_embeddings().weight
        self._device = weight.device
        self._plain_attention = model.config._attn_implementation
        self._keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.min_rows = min_rows(weight.dtype, torch.get_num_threads())

    def use_packed_attention(self) -> None:
        self._model.set_attn_implementation(ATTENTION_NAME)

    def use_plain_attention(self) -> None:
        """Give the model back the attention it was loaded with; ``execute`` must not be called then."""
        self._model.set_attn_implementation(self._plain_attention)

    @torch.inference_mode()
    def execute(self, items: Items[RunItem]) -> Tensor:
        """Write the items' K/V and return logits ``[rows, vocabulary]`` in float32, one row per sampling item, in
        order."""
        ids, positions, segments, rows = _pack(items, self.min_rows)
        kept = torch.tensor(_at_least(rows or [0], self.min_rows), device=self._device)
        with attend_within(PackedBatch(segments)):
            output = self._model(
                input_ids=torch.tensor([ids], device=self._device),
                position_ids=torch.tensor([positions], device=self._device),
                use_cache=False,
                **({"logits_to_keep": kept} if self._keeps_rows else {}),
            )
        logits: Tensor = output.logits[0] if self._keeps_rows else output.logits[0, kept]
        return logits[: len(rows)].float()


def _pack(items: Items[RunItem], rows_min: int) -> tuple[list[int], list[int], list[Segment], list[int]]:
    ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    rows: list[int] = []
    for item in items:
        segments.append(Segment(item.kv, row=len(ids), start=item.start, count=len(item.token_ids)))
        ids += item.token_ids
        positions += range(item.start, item.start + len(item.token_ids))
        if item.samples:
            rows.append(len(ids) - 1)
    padding = max(0, rows_min - len(ids))
    return ids + [0] * padding, positions + [0] * padding, segments, rows


def _at_least(rows: list[int], rows_min: int) -> list[int]:
    return rows + [rows[-1]] * max(0, rows_min - len(rows))
