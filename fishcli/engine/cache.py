"""Keys and values of the slow AR in blocks, and the ``Attend`` objects over them.

The model sees only these objects; which block is whose is decided by ``blocks``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fishcli.kernels.ops import Ops
from fishcli.kernels.reference import Heads, PagedKV
from fishcli.model import TransformerConfig

BLOCK_SIZE = 32  # positions: 8 kB a head and block in bfloat16, and little waste at a row's end


def bytes_per_token(config: TransformerConfig, dtype: torch.dtype) -> int:
    """Memory of one position in all layers: 2 · layers · KV heads · head dim · element size."""
    return 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize


class PagedCache:
    """A pool of blocks for all layers, and the table of the slots' blocks.

    keys, values: (layers, 1 + blocks, kv_heads, BLOCK_SIZE, head_dim), block 0 the trash.
    table: (slots, max_blocks) int32 on the device; rewritten in place, so that captured
    graphs keep reading it.
    """

    def __init__(
        self, config: TransformerConfig, slots: int, blocks: int, capacity: int, like: Tensor
    ) -> None:
        shape = (config.layers, 1 + blocks, config.kv_heads, BLOCK_SIZE, config.head_dim)
        self.keys = like.new_zeros(shape)
        self.values = like.new_zeros(shape)
        self.capacity = capacity
        max_blocks = -(-capacity // BLOCK_SIZE)
        self.table = torch.zeros(slots, max_blocks, dtype=torch.int32, device=like.device)
        self._last_tables: list[list[int]] = []

    def set_table(self, tables: list[list[int]]) -> None:
        """Replace the whole table, one list of blocks a slot, by an asynchronous copy.

        Nothing is copied where nothing changed: most frames begin no new block.
        """
        if tables == self._last_tables:
            return
        self._last_tables = tables
        host = np.zeros(self.table.shape, dtype=np.int32)
        for slot, blocks in enumerate(tables):
            host[slot, : len(blocks)] = blocks
        source = torch.from_numpy(host)
        if self.table.is_cuda:
            source = source.pin_memory()  # pageable memory would make the copy wait
        self.table.copy_(source, non_blocking=True)

    def layer(self, layer: int, table: Tensor) -> PagedKV:
        """One layer's blocks, seen through some rows of a table."""
        return PagedKV(self.keys[layer], self.values[layer], table)

    def gather(self, blocks: list[int]) -> tuple[Tensor, Tensor]:
        """Copies of ``blocks`` in all layers: (layers, count, kv_heads, BLOCK_SIZE, head_dim)."""
        index = torch.tensor(blocks, device=self.keys.device)
        return self.keys[:, index], self.values[:, index]

    def scatter(self, blocks: list[int], keys: Tensor, values: Tensor) -> None:
        """Write what :meth:`gather` gave into other ``blocks``."""
        index = torch.tensor(blocks, device=self.keys.device)
        self.keys[:, index] = keys.to(self.keys.device, non_blocking=True)
        self.values[:, index] = values.to(self.values.device, non_blocking=True)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeAttend:
    """One new position a row, over everything the row has cached.

    table: (rows, blocks that any row may use); positions: (rows,) int64 of the new columns.
    """

    cache: PagedCache
    ops: Ops
    workspace: Any  # of the attention, see Ops.attention_workspace
    rope: Tensor
    table: Tensor
    positions: Tensor

    def __call__(self, layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        kv = self.cache.layer(layer, self.table)
        q = self.ops.store_decode_qkv(qkv, heads, self.rope, self.positions, kv)
        out = self.ops.paged_decode_attention(q, kv, self.positions, self.workspace)
        return out.flatten(1)


@dataclass(frozen=True, slots=True, eq=False)
class PrefillAttend:
    """New columns of several rows, after those that each has cached already.

    table: (rows, blocks); starts: (rows,) int64 position of each row's first new column;
    lengths: (rows,) int64 new columns, padding on the right not counted. Padding is computed
    too; its keys and values go to the trash.
    """

    cache: PagedCache
    ops: Ops
    rope: Tensor
    table: Tensor
    starts: Tensor
    lengths: Tensor

    def __call__(self, layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        rows, new = qkv.shape[:2]
        offsets = torch.arange(new, device=qkv.device)
        # A new column is stored like a decoded one: as a row of its own, with its row's blocks.
        last = self.rope.shape[0] - 1
        positions = (self.starts[:, None] + offsets).clamp_max(last).flatten()  # (rows · new,)
        padding = (offsets >= self.lengths[:, None]).flatten()
        column_table = self.table.repeat_interleave(new, dim=0).masked_fill(padding[:, None], 0)
        inside = positions.clamp_max(self.table.shape[1] * BLOCK_SIZE - 1)
        stored = self.cache.layer(layer, column_table)
        flat = qkv.flatten(0, 1).contiguous()
        q = self.ops.store_decode_qkv(flat, heads, self.rope, inside, stored)
        q = q.view(rows, new, *q.shape[1:])
        kv = self.cache.layer(layer, self.table)
        return self.ops.paged_prefill_attention(q, kv, self.starts).flatten(2)
