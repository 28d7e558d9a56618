"""Keys and values of the slow AR, one fixed stretch of positions a slot.

The model sees only the two ``Attend`` objects made here, so another layout (blocks,
shared prefixes) or another kernel replaces this file and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fishcli.kernels import reference
from fishcli.model import TransformerConfig


def bytes_per_token(config: TransformerConfig, dtype: torch.dtype) -> int:
    """Memory of one position in all layers: 2 · layers · KV heads · head dim · element size."""
    return 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize


class SlotCache:
    """``slots`` rows of up to ``capacity`` positions each.

    Written but unread positions hold leftovers of earlier rows; every reader masks by
    the row's own length, so they need no clearing.
    """

    def __init__(self, config: TransformerConfig, slots: int, capacity: int, like: Tensor) -> None:
        self.capacity = capacity
        shape = (config.layers, slots, config.kv_heads, capacity, config.head_dim)
        self._keys = like.new_zeros(shape)
        self._values = like.new_zeros(shape)

    def prefill(self, slots: Tensor) -> PrefillAttend:
        """Attention of new prompts, written from position 0 into ``slots`` (rows,) int64."""
        return PrefillAttend(self._keys, self._values, slots)

    def decode(self, rows: slice, positions: Tensor, length: int) -> DecodeAttend:
        """Attention of one new position a row of the slots ``rows``.

        positions: (rows,) int64 where each row's new keys go; ``length``: a bound the host
        knows, greater than every position.
        """
        assert length <= self.capacity, (length, self.capacity)
        return DecodeAttend(self._keys[:, rows], self._values[:, rows], positions, length)


@dataclass(frozen=True, slots=True, eq=False)
class PrefillAttend:
    """Whole prompts: plain causal attention; right padding is harmless."""

    keys: Tensor
    values: Tensor
    slots: Tensor

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = k.shape[1]
        self.keys[layer, :, :, :length].index_copy_(0, self.slots, k.transpose(1, 2))
        self.values[layer, :, :, :length].index_copy_(0, self.slots, v.transpose(1, 2))
        return reference.causal_attention(q, k, v)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeAttend:
    """One position a row, over everything the row has cached."""

    keys: Tensor  # (layers, rows, kv_heads, capacity, head_dim)
    values: Tensor
    positions: Tensor
    length: int

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.keys[layer], self.values[layer]
        index = self.positions.view(-1, 1, 1, 1).expand(-1, k.shape[2], 1, k.shape[3])
        keys.scatter_(2, index, k.transpose(1, 2))
        values.scatter_(2, index, v.transpose(1, 2))
        known = slice(0, self.length)
        out = reference.decode_attention(
            q[:, 0], keys[:, :, known], values[:, :, known], self.positions
        )
        return out.unsqueeze(1)
