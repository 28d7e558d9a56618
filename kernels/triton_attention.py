"""Decode attention over keys and values in blocks.

Limit: bytes. Attention reads 2 · kv_heads · head_dim numbers a cached position and layer
(4 kB for S2-Pro in bfloat16) and does four multiply-adds on each, so the matrix unit idles
whatever the tile; what counts is that every byte is read once, in whole cache lines, with
enough of them in flight. Hence one program reads for all query heads of a KV head, and a
row is cut into partitions, so that a few long rows fill the chip too.

A partition is PARTITION positions for every row, batch and table: the order of a row's sums,
and so its bits, depend on the row alone. Partial results go to a workspace of the caller's;
the last of a row's programs to finish merges them in the order of the positions, which
spares a second launch. A row of one partition needs none of this.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fishcli.kernels.reference import PagedKV
from fishcli.kernels.triton_heads import check_blocks

PARTITION = 512  # positions whose sums are taken in one go
TILE = 32  # positions of a step of the loop; 8 kB of keys and 8 kB of values
STAGES = 3  # tiles in flight, a program: with the warps, they decide how many fit on the chip
WARPS = 4  # two meet at fewer barriers, but four won at every size measured
PROGRAMS = 1024  # about two for each place on the chip; those without a partition cost too


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWorkspace:
    """Unmerged results of the partitions, float32, which mean nothing between calls.

    sums: (rows, heads, partitions, head_dim), weighted values; peaks, totals: (rows, heads,
    partitions), the largest score in units of log 2 and the sum of 2 ** (score - peak).
    tickets: (rows, heads) int32, programs that have finished, by row and KV head; 0 between
    calls. One workspace serves all layers of a stream, being free again when a call's kernel
    has run.
    """

    sums: Tensor
    peaks: Tensor
    totals: Tensor
    tickets: Tensor

    @classmethod
    def allocate(
        cls, rows: int, heads: int, head_dim: int, max_positions: int, device: torch.device
    ) -> AttentionWorkspace:
        """For batches of up to ``rows`` rows whose tables span up to ``max_positions``."""
        shape = (rows, heads, triton.cdiv(max_positions, PARTITION))
        sums = torch.empty(*shape, head_dim, device=device)
        peaks, totals = (torch.empty(shape, device=device) for _ in range(2))
        tickets = torch.zeros(rows, heads, dtype=torch.int32, device=device)
        return cls(sums, peaks, totals, tickets)


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
    strides = min(partitions, max(1, PROGRAMS // (rows * kv_heads)))
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
        workspace.tickets,
        kv.table.stride(0),
        kv.table.shape[1],
        sums.shape[2],
        head_dim**-0.5,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=kv.block_size,
        PARTITION=PARTITION,
        TILE=TILE,
        QUERIES=max(16, triton.next_power_of_2(heads // kv_heads)),
        num_warps=WARPS,
        num_stages=STAGES,
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
    tickets_ptr,
    table_stride,
    table_width,
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
    table_ptr += row * table_stride
    # Asked for before the length is known, so that the two waits are one; inside the table,
    # since no program's first partition begins beyond it.
    begin = tl.program_id(2) * PARTITION
    next_block = tl.load(table_ptr + begin // BLOCK_SIZE)
    length = (tl.load(last_ptr + row) + 1).to(tl.int32)
    partitions = tl.cdiv(length, PARTITION)
    SHARE: tl.constexpr = HEADS // KV_HEADS
    query = tl.arange(0, QUERIES)  # rows of a tile beyond SHARE only fill the matrix unit
    used = query < SHARE
    heads = row * HEADS + kv_head * SHARE + query
    dims = tl.arange(0, HEAD_DIM)
    places = heads[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + places, mask=used[:, None], other=0.0)
    for partition in range(tl.program_id(2), partitions, tl.num_programs(2)):
        begin = partition * PARTITION
        peak, total, sums = _partition_sums(
            q,
            keys_ptr,
            values_ptr,
            table_ptr,
            table_width,
            next_block,
            kv_head,
            begin,
            tl.minimum(begin + PARTITION, length),
            scale * 1.4426950408889634,  # scores in units of log 2: exp2 is the fast one
            KV_HEADS,
            HEAD_DIM,
            BLOCK_SIZE,
            TILE,
            QUERIES,
        )
        if TILE <= BLOCK_SIZE:
            following = (partition + tl.num_programs(2)) * PARTITION // BLOCK_SIZE
            next_block = tl.load(table_ptr + tl.minimum(following, table_width - 1))
        if partitions == 1:
            out = (sums / total[:, None]).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + places, out, mask=used[:, None])
        else:
            part = heads * room + partition
            tl.store(sums_ptr + part[:, None] * HEAD_DIM + dims[None, :], sums, used[:, None])
            tl.store(peaks_ptr + part, peak, mask=used)
            tl.store(totals_ptr + part, total, mask=used)
    if partitions > 1 and tl.program_id(2) < partitions:
        tl.debug_barrier()  # every thread has stored its part before the ticket says so
        ticket_ptr = tickets_ptr + row * HEADS + kv_head
        ticket = tl.atomic_add(ticket_ptr, 1, sem="acq_rel", scope="gpu")
        if ticket == tl.minimum(tl.num_programs(2), partitions) - 1:
            first = heads * room
            out = _merged(
                sums_ptr, peaks_ptr, totals_ptr, first, used, partitions, QUERIES, HEAD_DIM
            )
            tl.store(out_ptr + places, out.to(out_ptr.dtype.element_ty), mask=used[:, None])
            tl.store(ticket_ptr, 0)


@triton.jit
def _partition_sums(
    q,
    keys_ptr,
    values_ptr,
    table_ptr,
    table_width,
    next_block,
    kv_head,
    begin,
    end,
    log2_scale,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """Largest score, sum of powers, weighted values of positions [begin, end) of a row.

    q: (QUERIES, HEAD_DIM); ``next_block`` holds position ``begin``.
    """
    step = tl.arange(0, TILE)
    dims = tl.arange(0, HEAD_DIM)
    inside = step[:, None] * HEAD_DIM + dims[None, :]
    peak = tl.full((QUERIES,), float("-inf"), tl.float32)
    totals = tl.zeros((QUERIES, TILE), tl.float32)  # added up once, after the loop
    sums = tl.zeros((QUERIES, HEAD_DIM), tl.float32)
    for tile in range(begin, end, TILE):
        live = tile + step < end
        if TILE <= BLOCK_SIZE:  # a tile lies in one block, known a step ahead
            slot = (next_block.to(tl.int64) * KV_HEADS + kv_head) * BLOCK_SIZE
            tile_begin = (slot + tile % BLOCK_SIZE) * HEAD_DIM
            offsets = inside
            following = tl.minimum((tile + TILE) // BLOCK_SIZE, table_width - 1)
            next_block = tl.load(table_ptr + following)
        else:
            entries = table_ptr + (tile + step) // BLOCK_SIZE
            blocks = tl.load(entries, mask=live, other=0).to(tl.int64)
            slots = (blocks * KV_HEADS + kv_head) * BLOCK_SIZE + (tile + step) % BLOCK_SIZE
            tile_begin = 0
            offsets = slots[:, None] * HEAD_DIM + dims[None, :]
        keys = tl.load(keys_ptr + tile_begin + offsets, mask=live[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * log2_scale
        scores = tl.where(live[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp2(peak - new_peak)
        weights = tl.exp2(scores - new_peak[:, None])
        totals = totals * shrink[:, None] + weights
        values = tl.load(values_ptr + tile_begin + offsets, mask=live[:, None], other=0.0)
        sums = tl.dot(
            weights.to(values.dtype), values, sums * shrink[:, None], input_precision="ieee"
        )
        peak = new_peak
    return peak, tl.sum(totals, 1), sums


@triton.jit
def _merged(
    sums_ptr,
    peaks_ptr,
    totals_ptr,
    first,
    used,
    partitions,
    QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Attention of query heads whose partitions lie from ``first`` (QUERIES,) on.

    Read past the first-level cache: other processors of the chip have written them.
    """
    dims = tl.arange(0, HEAD_DIM)
    peak = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    sums = tl.zeros((QUERIES, HEAD_DIM), tl.float32)
    for partition in tl.range(0, partitions, num_stages=1):
        place = first + partition
        part_peak = tl.load(peaks_ptr + place, used, 0.0, cache_modifier=".cg")
        part_total = tl.load(totals_ptr + place, used, 1.0, cache_modifier=".cg")
        part = tl.load(
            sums_ptr + place[:, None] * HEAD_DIM + dims[None, :],
            mask=used[:, None],
            other=0.0,
            cache_modifier=".cg",
        )
        new_peak = tl.maximum(peak, part_peak)
        shrink, weight = tl.exp2(peak - new_peak), tl.exp2(part_peak - new_peak)
        total = total * shrink + part_total * weight
        sums = sums * shrink[:, None] + part * weight[:, None]
        peak = new_peak
    return sums / total[:, None]
