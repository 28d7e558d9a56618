"""Heads of a stacked projection: norm, rotation, and the step that stores keys and values.

Limit: latency for one row, bytes for many (each head is read and written once). A program
takes heads of one kind, so its branches are uniform. Tiles are (heads, HEAD_DIM); a reshape
to adjacent pairs keeps a thread's numbers where they are, so that loads and stores of whole
heads stay 16 bytes wide. Roundings are those of the plain twins.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fishcli.kernels.reference import Heads, PagedKV

HEADS_A_PROGRAM = 8  # at most; with head_dim 128 each of 128 threads has 16 bytes to move


def store_decode_qkv(
    qkv: Tensor, heads: Heads, rope_table: Tensor, positions: Tensor, kv: PagedKV
) -> Tensor:
    """Norm, rotate and store one new position a row, in one launch; see the twin.

    qkv: (rows, (heads + 2 · kv_heads) · head_dim) contiguous; rope_table: (max positions,
    head_dim / 2, 2) float32 contiguous; positions: (rows,) int64. Writes into ``kv`` in
    place and returns q, (rows, heads, head_dim).
    """
    rows, head_dim = qkv.shape[0], heads.head_dim
    q_heads = qkv.shape[1] // head_dim - 2 * heads.kv_heads
    assert qkv.is_contiguous() and qkv.shape[1] == (q_heads + 2 * heads.kv_heads) * head_dim
    assert rope_table.is_contiguous() and rope_table.dtype == torch.float32
    assert rope_table.shape[1:] == (head_dim // 2, 2), rope_table.shape
    assert positions.shape == (rows,) and positions.dtype == torch.int64
    check_blocks(kv, rows, heads.kv_heads, head_dim, qkv.dtype)
    assert (heads.q_norm is None) == (heads.k_norm is None)
    q = qkv.new_empty(rows, q_heads, head_dim)
    if rows == 0:
        return q
    # A program's heads are all q, all k or all v.
    group = HEADS_A_PROGRAM
    while q_heads % group or heads.kv_heads % group:
        group //= 2
    _store_kernel[(rows, (q_heads + 2 * heads.kv_heads) // group)](
        qkv,
        heads.q_norm,
        heads.k_norm,
        rope_table,
        positions,
        kv.table,
        kv.keys,
        kv.values,
        q,
        kv.table.stride(0),
        heads.norm_eps,
        Q_HEADS=q_heads,
        KV_HEADS=heads.kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=kv.block_size,
        GROUP=group,
        NORM=heads.q_norm is not None,
        num_warps=4,
    )
    return q


def check_blocks(kv: PagedKV, rows: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    """What the kernels' addresses rely on."""
    shape = (kv.keys.shape[0], kv_heads, kv.block_size, head_dim)
    assert kv.keys.shape == shape and kv.values.shape == shape, (kv.keys.shape, shape)
    assert kv.keys.is_contiguous() and kv.values.is_contiguous()
    assert kv.keys.dtype == dtype and kv.values.dtype == dtype
    assert kv.table.dtype == torch.int32 and kv.table.shape[0] == rows
    assert kv.table.stride(1) == 1
    assert head_dim in {32, 64, 128} and triton.next_power_of_2(kv.block_size) == kv.block_size


@triton.jit
def norm_heads(x, weight, eps, HEAD_DIM: tl.constexpr):
    """RMSNorm of each row of ``x``: float32 inside, cast back before ``weight`` (HEAD_DIM,)."""
    wide = x.to(tl.float32)
    mean = tl.sum(wide * wide, axis=1, keep_dims=True) / HEAD_DIM
    normed = (wide * tl.rsqrt(mean + eps)).to(x.dtype)
    # The product of two bfloat16 numbers is exact in float32: one rounding, as in the twin.
    return (normed.to(tl.float32) * weight[None, :].to(tl.float32)).to(x.dtype)


@triton.jit
def rotate_heads(x, rope, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Rotate adjacent pairs of ``x`` (ROWS, HEAD_DIM) in float32 and cast back.

    rope: (ROWS or 1, HEAD_DIM) float32, cosine and sine of each pair side by side.
    """
    even, odd = tl.split(tl.reshape(x.to(tl.float32), (ROWS, HEAD_DIM // 2, 2)))
    cos, sin = tl.split(tl.reshape(rope, (rope.shape[0], HEAD_DIM // 2, 2)))
    rotated = tl.join(even * cos - odd * sin, odd * cos + even * sin)
    return tl.reshape(rotated, (ROWS, HEAD_DIM)).to(x.dtype)


@triton.jit
def _store_kernel(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    rope_ptr,
    positions_ptr,
    table_ptr,
    keys_ptr,
    values_ptr,
    q_ptr,
    table_stride,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    NORM: tl.constexpr,
):
    """Program (row, g): heads [g · GROUP, (g + 1) · GROUP) of the row's stacked projection."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * GROUP
    dims = tl.arange(0, HEAD_DIM)
    heads = first + tl.arange(0, GROUP)
    position = tl.load(positions_ptr + row)
    x = tl.load(
        qkv_ptr
        + row * (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM
        + heads[:, None] * HEAD_DIM
        + dims[None, :]
    )
    if first < Q_HEADS + KV_HEADS:
        if NORM:
            norm_ptr = q_norm_ptr if first < Q_HEADS else k_norm_ptr
            x = norm_heads(x, tl.load(norm_ptr + dims), eps, HEAD_DIM)
        rope = tl.load(rope_ptr + position * HEAD_DIM + dims[None, :])
        x = rotate_heads(x, rope, GROUP, HEAD_DIM)
    if first < Q_HEADS:
        tl.store(q_ptr + (row * Q_HEADS + heads[:, None]) * HEAD_DIM + dims[None, :], x)
    else:
        block = tl.load(table_ptr + row * table_stride + position // BLOCK_SIZE).to(tl.int64)
        cache_ptr = keys_ptr if first < Q_HEADS + KV_HEADS else values_ptr
        kv_heads = (heads - Q_HEADS) % KV_HEADS
        slots = (block * KV_HEADS + kv_heads) * BLOCK_SIZE + position % BLOCK_SIZE
        tl.store(cache_ptr + slots[:, None] * HEAD_DIM + dims[None, :], x)
