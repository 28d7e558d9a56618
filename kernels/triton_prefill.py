"""Causal attention of several new positions a row, over keys and values in blocks.

Limit: a prompt of 300 positions takes 0.7 Gflop and 1.2 MB of keys and values a layer of
S2-Pro, both less than the chip does in the time of a launch; so it is latency, that is how
many programs share the work, and for many or long prompts the matrix unit. Hence the queries
of all heads of a KV head lie in one tile, 64 rows for the matrix unit, which a program
takes past the keys one tile after another, softmax running along, so that scores never go to
memory. A tile is no larger than the matrix unit needs: a prompt of 64 positions still gives
32 programs a row.

Tiles of queries begin at the row's first new position, tiles of keys at position 0, and both
have one size for every batch: the order of a query's sums, and so its bits, depend on its
row's start and its own position alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fishcli.kernels.reference import PagedKV
from fishcli.kernels.triton_heads import check_blocks


@dataclass(frozen=True, slots=True)
class Tiles:
    """Sizes of a program's work; ``queries`` counts heads times positions."""

    queries: int
    keys: int
    warps: int
    stages: int


# Two tiles of keys and values in shared memory, 80 kB: two programs fit a multiprocessor.
HALF = Tiles(queries=64, keys=64, warps=4, stages=3)
# No matrix unit multiplies float32 exactly, and a thread must hold its part of both operands.
FULL = Tiles(queries=16, keys=32, warps=4, stages=2)


def paged_prefill_attention(q: Tensor, kv: PagedKV, starts: Tensor) -> Tensor:
    """Causal grouped-query attention of several new positions a row over blocks; see the twin.

    q: (rows, new, heads, head_dim) contiguous, bfloat16 or float32; starts: (rows,) int64,
    position of a row's first query, at least 0. Keys and values of the new positions are in
    ``kv`` already. Returns the shape of ``q``. A query's result takes nothing from later
    positions, not even NaN, so those past a prompt's end may hold anything; queries there, even
    beyond the table, are computed too and mean nothing.
    """
    rows, new, heads, head_dim = q.shape
    kv_heads = kv.keys.shape[1]
    assert q.is_contiguous() and heads % kv_heads == 0
    assert q.dtype in {torch.bfloat16, torch.float32}, q.dtype
    assert starts.shape == (rows,) and starts.dtype == torch.int64 and starts.is_contiguous()
    check_blocks(kv, rows, kv_heads, head_dim, q.dtype)
    out = torch.empty_like(q)
    if rows == 0 or new == 0:
        return out
    tiles = HALF if q.dtype == torch.bfloat16 else FULL
    share = triton.next_power_of_2(heads // kv_heads)
    columns = max(1, tiles.queries // share)  # positions of a tile of queries
    _prefill_kernel[(kv_heads, rows, triton.cdiv(new, columns))](
        q,
        kv.keys,
        kv.values,
        kv.table,
        starts,
        out,
        new,
        kv.table.shape[1] * kv.block_size,
        kv.table.stride(0),
        head_dim**-0.5,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=kv.block_size,
        SHARE=share,
        COLUMNS=columns,
        TILE=tiles.keys,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return out


@triton.jit
def _prefill_kernel(
    q_ptr,
    keys_ptr,
    values_ptr,
    table_ptr,
    starts_ptr,
    out_ptr,
    new,
    table_positions,
    table_stride,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SHARE: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (kv head, row, t): COLUMNS new positions, the t-th from the end, all its heads."""
    kv_head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first = (tl.num_programs(2) - 1 - tl.program_id(2)) * COLUMNS  # the longest loops begin first
    start = tl.load(starts_ptr + row).to(tl.int32)
    query = tl.arange(0, COLUMNS * SHARE)  # heads of a position side by side
    column, head = first + query // SHARE, query % SHARE
    dims = tl.arange(0, HEAD_DIM)
    places = (row * new + column) * HEADS + kv_head * (HEADS // KV_HEADS) + head
    offsets = places[:, None] * HEAD_DIM + dims[None, :]
    used = ((column < new) & (head < HEADS // KV_HEADS))[:, None]
    q = tl.load(q_ptr + offsets, mask=used, other=0.0)
    own = start + column
    table_ptr += row * table_stride
    keys_ptr += kv_head * BLOCK_SIZE * HEAD_DIM
    values_ptr += kv_head * BLOCK_SIZE * HEAD_DIM
    log2_scale = scale * 1.4426950408889634  # scores in units of log 2: exp2 is the fast one
    # Every query sees the positions before ``shared``, none those from ``end`` on.
    shared = tl.minimum(start + first + 1, table_positions) // TILE * TILE
    end = tl.minimum(start + first + COLUMNS, table_positions)
    peak = tl.full((COLUMNS * SHARE,), float("-inf"), tl.float32)
    total = tl.zeros((COLUMNS * SHARE,), tl.float32)
    sums = tl.zeros((COLUMNS * SHARE, HEAD_DIM), tl.float32)
    for tile in range(0, shared, TILE):
        positions = tile + tl.arange(0, TILE)
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE).to(tl.int64)
        slots = blocks * (KV_HEADS * BLOCK_SIZE) + positions % BLOCK_SIZE
        keys = tl.load(keys_ptr + slots[:, None] * HEAD_DIM + dims[None, :])
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * log2_scale
        values = tl.load(values_ptr + slots[:, None] * HEAD_DIM + dims[None, :])
        peak, total, sums = _add_tile(scores, values, peak, total, sums)
    for tile in tl.range(shared, end, TILE, num_stages=1):
        positions = tile + tl.arange(0, TILE)
        live = positions < end
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=live, other=0).to(tl.int64)
        slots = blocks * (KV_HEADS * BLOCK_SIZE) + positions % BLOCK_SIZE
        inside = slots[:, None] * HEAD_DIM + dims[None, :]
        keys = tl.load(keys_ptr + inside, mask=live[:, None], other=0.0)
        values = tl.load(values_ptr + inside, mask=live[:, None], other=0.0)
        # Zero times what lies past a prompt's end must be zero. Visible values that are not
        # finite come with such keys, which still show.
        values = tl.where(tl.abs(values) < float("inf"), values, 0.0)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * log2_scale
        scores = tl.where(positions[None, :] <= own[:, None], scores, float("-inf"))
        peak, total, sums = _add_tile(scores, values, peak, total, sums)
    tl.store(out_ptr + offsets, (sums / total[:, None]).to(out_ptr.dtype.element_ty), mask=used)


@triton.jit
def _add_tile(scores, values, peak, total, sums):
    """The running softmax with one more tile of ``scores`` (queries, keys) and ``values``."""
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    shrink = tl.exp2(peak - new_peak)
    weights = tl.exp2(scores - new_peak[:, None])
    total = total * shrink + tl.sum(weights, 1)
    weights = weights.to(values.dtype)
    sums = tl.dot(weights, values, sums * shrink[:, None], input_precision="ieee")
    return new_peak, total, sums
