"""Decode attention over keys and values in blocks.

Limit: bytes. Attention reads 2 · kv_heads · head_dim numbers a cached position and layer
(4 kB for S2-Pro in bfloat16) and does four multiply-adds on each, so the matrix unit idles
whatever the tile; what counts is that every byte is read once, in whole cache lines, with
enough of them in flight. Hence one program reads for all query heads of a KV head, and a
row is cut into partitions, so that a few long rows fill the chip too.

A partition is PARTITION positions for every row, batch and table: the order of a row's sums,
and so its bits, depend on the row alone. Partial results go to a workspace of the caller's
and are merged in the order of the positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fishcli.kernels.reference import PagedKV
from fishcli.kernels.triton_heads import check_blocks

PARTITION = 256  # positions whose sums are taken in one go
TILE = 64  # positions of a step of the loop; 16 kB of keys and 16 kB of values
STAGES = 5  # two tiles in flight, a program: the blocks of a tile are a load before its keys
WARPS = 4
MERGE_TILE = 8  # partitions merged in one go
PROGRAMS = 4096  # about eight programs for each place on the chip


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWorkspace:
    """Unmerged results of the partitions, float32; contents mean nothing between calls.

    sums: (rows, heads, partitions, head_dim), weighted values; peaks, totals: (rows, heads,
    partitions), the largest score in units of log 2 and the sum of 2 ** (score - peak).
    One serves all layers, being free again when a call's kernels have run.
    """

    sums: Tensor
    peaks: Tensor
    totals: Tensor

    @classmethod
    def allocate(
        cls, rows: int, heads: int, head_dim: int, max_positions: int, device: torch.device
    ) -> AttentionWorkspace:
        """For batches of up to ``rows`` rows whose tables span up to ``max_positions``."""
        shape = (rows, heads, triton.cdiv(max_positions, PARTITION))
        sums = torch.empty(*shape, head_dim, device=device)
        return cls(sums, torch.empty(shape, device=device), torch.empty(shape, device=device))


def paged_decode_attention(
    q: Tensor, kv: PagedKV, last: Tensor, workspace: AttentionWorkspace
) -> Tensor:
    """Grouped-query attention of one new position a row over blocks; see the twin.

    q: (rows, heads, head_dim) contiguous; ``last``: (rows,) int64 newest position of each
    row, at least 0 and inside the table. ``workspace`` must cover the rows and the table's
    width. Returns the shape of ``q``; a row reads its own ``last + 1`` positions only.
    """
    rows, heads, head_dim = q.shape
    kv_heads, positions = kv.keys.shape[1], kv.table.shape[1] * kv.block_size
    assert q.is_contiguous() and heads % kv_heads == 0
    assert last.shape == (rows,) and last.dtype == torch.int64
    check_blocks(kv, rows, kv_heads, head_dim, q.dtype)
    partitions = triton.cdiv(positions, PARTITION)
    sums, peaks, totals = workspace.sums, workspace.peaks, workspace.totals
    assert sums.shape[0] >= rows and sums.shape[1] == heads and sums.shape[3] == head_dim
    assert sums.shape[2] >= partitions, (sums.shape, positions)
    out = torch.empty_like(q)
    if rows == 0:
        return out
    # A program takes every strides-th partition of its row: which one takes a partition
    # changes nothing in the result, so full batches need no programs for unlikely lengths.
    strides = min(partitions, max(4, PROGRAMS // (rows * kv_heads)))
    sizes = {"HEADS": heads, "HEAD_DIM": head_dim, "PARTITION": PARTITION}
    _partition_kernel[(kv_heads, rows, strides)](
        q,
        kv.keys,
        kv.values,
        kv.table,
        last,
        out,
        sums,
        peaks,
        totals,
        kv.table.stride(0),
        sums.shape[2],
        head_dim**-0.5,
        KV_HEADS=kv_heads,
        BLOCK_SIZE=kv.block_size,
        TILE=TILE,
        QUERIES=max(16, triton.next_power_of_2(heads // kv_heads)),
        **sizes,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    if partitions > 1:
        _merge_kernel[(heads, rows)](
            sums,
            peaks,
            totals,
            last,
            out,
            sums.shape[2],
            MERGE_TILE=MERGE_TILE,
            **sizes,
            num_warps=4,
        )
    return out


@triton.jit
def _partition_kernel(
    q_ptr,
    keys_ptr,
    values_ptr,
    table_ptr,
    last_ptr,
    out_ptr,
    sums_ptr,
    peaks_ptr,
    totals_ptr,
    table_stride,
    room,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PARTITION: tl.constexpr,
    TILE: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """Program (kv head, row, s): partitions s, s + strides, … of a row, for its query heads."""
    kv_head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    length = (tl.load(last_ptr + row) + 1).to(tl.int32)
    partitions = tl.cdiv(length, PARTITION)
    SHARE: tl.constexpr = HEADS // KV_HEADS
    query = tl.arange(0, QUERIES)  # rows of a tile beyond SHARE only fill the matrix unit
    used = query < SHARE
    heads = row * HEADS + kv_head * SHARE + query
    dims = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + heads[:, None] * HEAD_DIM + dims[None, :], mask=used[:, None], other=0.0)
    log2_scale = scale * 1.4426950408889634  # scores in units of log 2: exp2 is the fast one
    for partition in range(tl.program_id(2), partitions, tl.num_programs(2)):
        begin = partition * PARTITION
        end = tl.minimum(begin + PARTITION, length)
        peak = tl.full((QUERIES,), float("-inf"), tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        sums = tl.zeros((QUERIES, HEAD_DIM), tl.float32)
        for tile in range(begin, end, TILE):
            positions = tile + tl.arange(0, TILE)
            live = positions < end
            entries = table_ptr + row * table_stride + positions // BLOCK_SIZE
            blocks = tl.load(entries, mask=live, other=0).to(tl.int64)
            slots = (blocks * KV_HEADS + kv_head) * BLOCK_SIZE + positions % BLOCK_SIZE
            offsets = slots[:, None] * HEAD_DIM + dims[None, :]
            keys = tl.load(keys_ptr + offsets, mask=live[:, None], other=0.0)
            scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * log2_scale
            scores = tl.where(live[None, :], scores, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(scores, 1))
            shrink = tl.exp2(peak - new_peak)
            weights = tl.exp2(scores - new_peak[:, None])
            total = total * shrink + tl.sum(weights, 1)
            values = tl.load(values_ptr + offsets, mask=live[:, None], other=0.0)
            sums = tl.dot(
                weights.to(values.dtype), values, sums * shrink[:, None], input_precision="ieee"
            )
            peak = new_peak
        if partitions == 1:
            tl.store(
                out_ptr + heads[:, None] * HEAD_DIM + dims[None, :],
                (sums / total[:, None]).to(out_ptr.dtype.element_ty),
                mask=used[:, None],
            )
        else:
            places = heads * room + partition
            tl.store(sums_ptr + places[:, None] * HEAD_DIM + dims[None, :], sums, used[:, None])
            tl.store(peaks_ptr + places, peak, mask=used)
            tl.store(totals_ptr + places, total, mask=used)


@triton.jit
def _merge_kernel(
    sums_ptr,
    peaks_ptr,
    totals_ptr,
    last_ptr,
    out_ptr,
    room,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PARTITION: tl.constexpr,
    MERGE_TILE: tl.constexpr,
):
    """Program (head, row): the row's partitions, unless it has one, which is merged already."""
    row = tl.program_id(1).to(tl.int64)
    head = row * HEADS + tl.program_id(0)
    partitions = (tl.load(last_ptr + row) // PARTITION + 1).to(tl.int32)
    if partitions > 1:
        dims = tl.arange(0, HEAD_DIM)
        peak = tl.full((), float("-inf"), tl.float32)
        total = tl.zeros((), tl.float32)
        out = tl.zeros((HEAD_DIM,), tl.float32)
        for first in range(0, partitions, MERGE_TILE):
            chosen = first + tl.arange(0, MERGE_TILE)
            live = chosen < partitions
            places = head * room + chosen
            peaks = tl.load(peaks_ptr + places, mask=live, other=float("-inf"))
            totals = tl.load(totals_ptr + places, mask=live, other=0.0)
            sums = tl.load(
                sums_ptr + places[:, None] * HEAD_DIM + dims[None, :],
                mask=live[:, None],
                other=0.0,
            )
            new_peak = tl.maximum(peak, tl.max(peaks, 0))
            shrink = tl.exp2(peak - new_peak)
            weights = tl.exp2(peaks - new_peak)
            total = total * shrink + tl.sum(weights * totals, 0)
            out = out * shrink + tl.sum(weights[:, None] * sums, 0)
            peak = new_peak
        tl.store(out_ptr + head * HEAD_DIM + dims, (out / total).to(out_ptr.dtype.element_ty))
