"""The attention function that unmodified Hugging Face models call: it writes K/V and attends, sequence by sequence.

The model gets one packed row ``[1, T]`` of tokens of several sequences and no cache object. Each layer calls
``packed_attention``, which looks up the running batch, stores K/V under the layer's index and attends each sequence's
rows to its own keys only. Query rows are padded to a multiple of ``QUERY_ROWS`` and keys to whole tiles (see
``kv_storage``), so that a row's result does not depend on its neighbours.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from pratique_server.engine.torch_engine.kv_storage import SequenceKv, padded_length

ATTENTION_NAME: Final = "pratique_packed"
QUERY_ROWS: Final = 4


class UnsupportedAttentionError(Exception):
    """The model asks for an attention rule that this function does not compute."""


@dataclass
class Segment:
    """``count`` rows of the packed input, from row ``row`` on: positions ``start …`` of one sequence."""

    kv: SequenceKv
    row: int
    start: int
    count: int


@dataclass
class PackedBatch:
    """One forward pass. Masks are made once and shared by the layers that use the same window."""

    segments: list[Segment]
    masks: dict[tuple[int, int | None, int], Tensor] = field(default_factory=dict)

    def mask(self, index: int, window: int | None, rows: int, like: Tensor) -> Tensor:
        key = (index, window, rows)
        if key not in self.masks:
            self.masks[key] = _causal_mask(self.segments[index], window, rows, like)
        return self.masks[key]


_running = threading.local()


@contextmanager
def attend_within(batch: PackedBatch) -> Iterator[None]:
    """Make ``batch`` the one that ``packed_attention`` serves in this thread."""
    assert getattr(_running, "batch", None) is None, "forward passes do not nest"
    _running.batch = batch
    try:
        yield
    finally:
        _running.batch = None


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **rules: Any,
) -> tuple[Tensor, None]:
    """Attend ``query [1, heads, T, d]`` as the running batch says; returns ``[1, T, heads, d]`` as the library
    expects.

    Rows that belong to no segment (padding) come out as zero.
    """
    _refuse_unknown(rules, query)
    batch: PackedBatch = _running.batch
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    output = query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])
    for index, segment in enumerate(batch.segments):
        rows = slice(segment.row, segment.row + segment.count)
        keys, values = segment.kv.write(layer, segment.start, key[:, :, rows], value[:, :, rows])
        grouped = _fold_heads(query[:, :, rows], heads=keys.shape[1])
        mask = batch.mask(index, sliding_window, _padded_rows(grouped.shape[2]), query)
        attended = functional.scaled_dot_product_attention(
            functional.pad(grouped, (0, 0, 0, mask.shape[2] - grouped.shape[2])),
            keys,
            values,
            attn_mask=mask,
            scale=scaling,
            enable_gqa=grouped.shape[1] != keys.shape[1],
        )[:, :, : grouped.shape[2]]
        output[0, rows] = attended.reshape(1, query.shape[1], segment.count, -1)[0].transpose(0, 1)
    return output, None


def _refuse_unknown(rules: dict[str, Any], query: Tensor) -> None:
    """Logit soft-capping, sinks and the like change the result; to ignore one would be to answer wrongly."""
    if query.shape[0] != 1:
        raise UnsupportedAttentionError("the model did not pass the packed row on as it is")
    for name in ("softcap", "s_aux", "position_bias", "head_mask"):
        if rules.get(name) is not None:
            raise UnsupportedAttentionError(f"the model's attention uses {name}")


def _fold_heads(query: Tensor, *, heads: int) -> Tensor:
    """In decode, the query heads that share a K/V head become rows of it: half the work of repeating K/V for each, and
    bitwise the same. Longer runs of rows stay as they are: folded, their last rows could fall into a partial tile."""
    if query.shape[2] != 1 or query.shape[1] % heads:
        return query
    return query.reshape(1, heads, query.shape[1] // heads, query.shape[3])


def _padded_rows(count: int) -> int:
    return -(-count // QUERY_ROWS) * QUERY_ROWS


def _causal_mask(segment: Segment, window: int | None, rows: int, like: Tensor) -> Tensor:
    """``[1, 1, rows, keys]``, 0 where a row may look and −inf elsewhere; rows beyond the segment's last look where it does."""
    last = segment.start + segment.count - 1
    positions = torch.arange(segment.start, segment.start + rows, device=like.device).clamp_(max=last)[:, None]
    keys = torch.arange(padded_length(last + 1), device=like.device)[None]
    hidden = keys > positions
    if window is not None:
        hidden |= keys <= positions - window
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, float("-inf"))[
        None, None
    ]


AttentionInterface.register(ATTENTION_NAME, packed_attention)
