"""Run one scheduled step through the model: items in, logits of the rows that yield a token out.

The tokens of all items are packed into one row. Only the rows that sample reach the language head. Both the token
rows and the head's rows are padded (``padded_rows``): the CPU library computes what is too few in another way and
rounds differently.
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

ROWS: Final = 4


def padded_rows(count: int, dtype: torch.dtype) -> int:
    """How many rows a matrix product of ``count`` rows is given, so that a row's result does not depend on their number.
    Measured with 1 to 8 threads and up to 200 rows: the float32 kernels compute four rows at a time, and the threads' shares
    of 9, 10 or 11 rows leave one to three over (with two threads; every multiple of four is right); the 16-bit ones need four in all."""
    return -(-max(count, 1) // ROWS) * ROWS if dtype is torch.float32 else max(count, ROWS)


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
        self._dtype = weight.dtype

    def use_packed_attention(self) -> None:
        self._model.set_attn_implementation(ATTENTION_NAME)

    def use_plain_attention(self) -> None:
        """Give the model back the attention it was loaded with; ``execute`` must not be called then."""
        self._model.set_attn_implementation(self._plain_attention)

    @torch.inference_mode()
    def execute(self, items: Items[RunItem]) -> Tensor:
        """Write the items' K/V and return logits ``[rows, vocabulary]`` in float32, one row per sampling item, in
        order."""
        ids, positions, segments, rows = _pack(items, self._dtype)
        kept = torch.tensor(_pad(rows or [0], self._dtype), device=self._device)
        with attend_within(PackedBatch(segments)):
            output = self._model(
                input_ids=torch.tensor([ids], device=self._device),
                position_ids=torch.tensor([positions], device=self._device),
                use_cache=False,
                **({"logits_to_keep": kept} if self._keeps_rows else {}),
            )
        logits: Tensor = output.logits[0] if self._keeps_rows else output.logits[0, kept]
        return logits[: len(rows)].float()


def _pack(items: Items[RunItem], dtype: torch.dtype) -> tuple[list[int], list[int], list[Segment], list[int]]:
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
    padding = padded_rows(len(ids), dtype) - len(ids)
    return ids + [0] * padding, positions + [0] * padding, segments, rows


def _pad(rows: list[int], dtype: torch.dtype) -> list[int]:
    return rows + [rows[-1]] * (padded_rows(len(rows), dtype) - len(rows))
