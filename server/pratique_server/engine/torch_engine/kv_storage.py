"""The K/V values themselves: one contiguous tensor per sequence and layer, grown in whole key tiles.

Attention always sees a multiple of ``KEY_TILE`` keys (the tail is zero and masked), because the summation order
inside the attention kernel depends on the number of keys: with whole tiles a token gets bitwise the same result
in prefill, in decode and in any chunking. Memory is bounded by the blocks of the pool plus one partial tile per
running sequence; ``tile_overhead_tokens`` says how much.
"""

from typing import Final

import torch
from torch import Tensor

KEY_TILE: Final = 512


def padded_length(num_tokens: int) -> int:
    """Smallest multiple of ``KEY_TILE`` that holds the tokens."""
    return -(-num_tokens // KEY_TILE) * KEY_TILE


def tile_overhead_tokens(*, max_num_seqs: int, block_size: int) -> int:
    """Tokens that may be stored beyond the block accounting: every running sequence may have one tile that is
    barely begun."""
    return max_num_seqs * max(0, KEY_TILE - block_size)


class SequenceKv:
    """K/V of one sequence, by layer. Tensors are ``[1, heads, tokens, head_dim]`` and made when a layer first writes."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the K/V of positions from ``start`` on; return the layer's keys and values up to a whole tile.

        ``key`` and ``value`` are ``[1, heads, count, head_dim]``. Positions beyond the last written one are zero.
        """
        end = start + key.shape[2]
        length = padded_length(end)
        keys, values = self._ensure(layer, length, key, value)
        keys[:, :, start:end] = key
        values[:, :, start:end] = value
        return keys[:, :, :length], values[:, :, :length]

    def _ensure(self, layer: int, length: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        held = self._layers.get(layer)
        if held is not None and held[0].shape[2] >= length:
            return held
        grown = (_zeros(key, length), _zeros(value, length))
        if held is not None:
            for new, old in zip(grown, held, strict=True):
                new[:, :, : old.shape[2]] = old
        self._layers[layer] = grown
        return grown

    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers written so far."""
        tensors = [tensor for pair in self._layers.values() for tensor in pair]
        return sum(tensor.shape[1] * tensor.shape[3] * tensor.element_size() for tensor in tensors)

    def release(self, *, poison: bool) -> None:
        """Drop the tensors. With ``poison`` (tests) whoever still reads them gets not-a-number."""
        if poison:
            self.poison()
        self._layers.clear()

    @torch.inference_mode()
    def poison(self) -> None:
        """Overwrite everything stored with not-a-number."""
        for tensors in self._layers.values():
            for tensor in tensors:
                tensor.fill_(float("nan"))


def _zeros(like: Tensor, length: int) -> Tensor:
    return torch.zeros(1, like.shape[1], length, like.shape[3], dtype=like.dtype, device=like.device)
