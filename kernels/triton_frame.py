"""The fast AR's attention over the positions of one frame, in one launch.

Limit: latency; a program reads under 10 kB. Norm, rotation, the write into the cache and the
attention are one program a row and KV head: the new keys and values go into its tile of all
positions from registers, never back through memory, so nothing has to be waited for.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fishcli.kernels.reference import Heads
from fishcli.kernels.triton_heads import norm_heads, rotate_heads

MAX_POSITIONS = 64  # one tile holds them
WARPS = 1  # a warp waits for no other, and 2048 programs of one fill the chip once


def frame_attention(
    qkv: Tensor, heads: Heads, rope_table: Tensor, keys: Tensor, values: Tensor, start: int
) -> Tensor:
    """Attention of the positions [start, start + new) of a frame; see the twin.

    qkv: (rows, new, (heads + 2 · kv_heads) · head_dim) contiguous; rope_table: (positions,
    head_dim / 2, 2) float32 contiguous; keys, values: (rows, kv_heads, codebooks, head_dim)
    contiguous, written in place. Returns (rows, new, heads · head_dim).
    """
    rows, new, width = qkv.shape
    head_dim, kv_heads, codebooks = heads.head_dim, heads.kv_heads, keys.shape[2]
    q_heads = width // head_dim - 2 * kv_heads
    assert qkv.is_contiguous() and width == (q_heads + 2 * kv_heads) * head_dim
    assert q_heads % kv_heads == 0 and head_dim in {32, 64, 128}
    assert rope_table.is_contiguous() and rope_table.dtype == torch.float32
    assert rope_table.shape[1:] == (head_dim // 2, 2), rope_table.shape
    assert keys.shape == values.shape == (rows, kv_heads, codebooks, head_dim), keys.shape
    assert keys.is_contiguous() and values.is_contiguous()
    assert keys.dtype == qkv.dtype and values.dtype == qkv.dtype
    assert 0 <= start < start + new <= min(codebooks, rope_table.shape[0], MAX_POSITIONS)
    assert (heads.q_norm is None) == (heads.k_norm is None)
    out = qkv.new_empty(rows, new, q_heads * head_dim)
    if rows == 0:
        return out
    _frame_kernel[(kv_heads, rows)](
        qkv,
        heads.q_norm,
        heads.k_norm,
        rope_table,
        keys,
        values,
        out,
        start,
        heads.norm_eps,
        head_dim**-0.5,
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        CODEBOOKS=codebooks,
        NEW=new,
        # The matrix unit's least tile is 16 in each direction.
        QUERIES=max(16, triton.next_power_of_2(new * q_heads // kv_heads)),
        POSITIONS=max(16, triton.next_power_of_2(codebooks)),
        NORM=heads.q_norm is not None,
        num_warps=WARPS,
    )
    return out


@triton.jit(do_not_specialize=["start"])
def _frame_kernel(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    rope_ptr,
    keys_ptr,
    values_ptr,
    out_ptr,
    start,
    eps,
    scale,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CODEBOOKS: tl.constexpr,
    NEW: tl.constexpr,
    QUERIES: tl.constexpr,
    POSITIONS: tl.constexpr,
    NORM: tl.constexpr,
):
    """Program (kv head, row): the query heads of a KV head at all new positions."""
    SHARE: tl.constexpr = Q_HEADS // KV_HEADS
    WIDTH: tl.constexpr = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM
    kv_head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, HEAD_DIM)[None, :]
    qkv_ptr += row * NEW * WIDTH

    # All positions in one tile: the old ones from the cache, the new ones as they are made.
    position = tl.arange(0, POSITIONS)[:, None]
    cached = ((row * KV_HEADS + kv_head) * CODEBOOKS + position) * HEAD_DIM + dims
    keys = tl.load(keys_ptr + cached, mask=position < start, other=0.0)
    values = tl.load(values_ptr + cached, mask=position < start, other=0.0)
    for i in tl.static_range(NEW):
        fresh_ptr = qkv_ptr + i * WIDTH + (Q_HEADS + kv_head) * HEAD_DIM + dims
        key, value = tl.load(fresh_ptr), tl.load(fresh_ptr + KV_HEADS * HEAD_DIM)
        if NORM:
            key = norm_heads(key, tl.load(k_norm_ptr + tl.arange(0, HEAD_DIM)), eps, HEAD_DIM)
        rope = tl.load(rope_ptr + (start + i) * HEAD_DIM + dims)
        key = rotate_heads(key, rope, 1, HEAD_DIM)
        place = ((row * KV_HEADS + kv_head) * CODEBOOKS + start + i) * HEAD_DIM + dims
        tl.store(keys_ptr + place, key)
        tl.store(values_ptr + place, value)
        keys = tl.where(position == start + i, key, keys)
        values = tl.where(position == start + i, value, values)

    # Queries: row i · SHARE + j is head j of the KV head's share at position start + i.
    query = tl.arange(0, QUERIES)
    step = query // SHARE
    used = (step < NEW)[:, None]
    columns = (kv_head * SHARE + query % SHARE)[:, None] * HEAD_DIM + dims
    q = tl.load(qkv_ptr + step[:, None] * WIDTH + columns, mask=used, other=0.0)
    rope = tl.load(rope_ptr + (start + step)[:, None] * HEAD_DIM + dims, mask=used, other=0.0)
    if NORM:
        q = norm_heads(q, tl.load(q_norm_ptr + tl.arange(0, HEAD_DIM)), eps, HEAD_DIM)
    q = rotate_heads(q, rope, QUERIES, HEAD_DIM)

    scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * (scale * 1.4426950408889634)
    seen = tl.arange(0, POSITIONS)[None, :] <= (start + step)[:, None]
    scores = tl.where(seen, scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    sums = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    out = (sums / tl.sum(weights, 1)[:, None]).to(out_ptr.dtype.element_ty)
    rows = row * NEW + step[:, None]
    tl.store(out_ptr + rows * (Q_HEADS * HEAD_DIM) + columns, out, mask=used)
