"""Plain PyTorch forms of every kernel: the specification, and what a CPU runs.

A fused kernel of this package must agree with its twin here. Formulas follow the
published arithmetic of the S2 family; where a rounding matters it is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """How a stacked projection splits into heads.

    qkv holds (heads + 2 · kv_heads) · head_dim numbers: all q, all k, all v. Weights of the
    norms of q and k, (head_dim,) each, are None where a model has none.
    """

    kv_heads: int
    head_dim: int
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    norm_eps: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class PagedKV:
    """Keys and values of one layer in blocks, and where the rows of a batch have theirs.

    keys, values: (blocks, kv_heads, block_size, head_dim); table: (rows, max_blocks) int32,
    entry j naming the block of the positions [j · block_size, (j + 1) · block_size).
    """

    keys: Tensor
    values: Tensor
    table: Tensor

    @property
    def block_size(self) -> int:
        """Positions of a block."""
        return self.keys.shape[2]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension: float32 inside, cast back before ``weight``."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def rope_table(length: int, head_dim: int, base: float, device: torch.device) -> Tensor:
    """Cosines and sines of positions 0 … length - 1: (length, head_dim / 2, 2) float32.

    Angles are computed in float32 and the table is rounded to bfloat16, also for
    float32 models: the S2 models were trained with that rounding.
    """
    exponent = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    inverse_frequency = 1.0 / base**exponent
    positions = torch.arange(length, device=device, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequency)
    return torch.stack([angles.cos(), angles.sin()], dim=-1).bfloat16().float()


def apply_rope(x: Tensor, table: Tensor) -> Tensor:
    """Rotate adjacent pairs (2j, 2j + 1) of ``x`` in float32 and cast back.

    x: (..., heads, head_dim); table: (..., head_dim / 2, 2), its leading dimensions
    those of ``x`` without the heads.
    """
    pairs = x.float().view(*x.shape[:-1], -1, 2)
    cos, sin = table.unsqueeze(-3).unbind(-1)
    even, odd = pairs.unbind(-1)
    rotated = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1)
    return rotated.flatten(-2).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up."""
    return F.silu(gate) * up


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal grouped-query attention of whole sequences, scale 1 / sqrt(head_dim).

    q: (rows, length, heads, head_dim); k, v: (rows, length, kv_heads, head_dim);
    returns the shape of ``q``.
    """
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
    )
    return out.transpose(1, 2)


def decode_attention(q: Tensor, k: Tensor, v: Tensor, last: Tensor) -> Tensor:
    """Grouped-query attention of one new position a row over its cached keys and values.

    q: (rows, heads, head_dim); k, v: (rows, kv_heads, length, head_dim); ``last``: (rows,)
    index of each row's newest position, later ones are masked. Returns the shape of ``q``.
    """
    rows, heads, head_dim = q.shape
    kv_heads, length = k.shape[1], k.shape[2]
    grouped = q.view(rows, kv_heads, heads // kv_heads, head_dim)
    scores = torch.matmul(grouped, k.transpose(-1, -2)).float() * head_dim**-0.5
    future = torch.arange(length, device=q.device) > last[:, None]  # (rows, length)
    scores = scores.masked_fill(future[:, None, None, :], float("-inf"))
    weights = scores.softmax(-1).to(v.dtype)
    return torch.matmul(weights, v).view(rows, heads, head_dim)


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + delta, and its RMSNorm: (normed, total), both of the shape and dtype of ``x``.

    The sum is rounded to the dtype before it is normed, as two separate steps would.
    """
    total = x + delta
    return rms_norm(total, weight, eps), total


def split_qkv(qkv: Tensor, heads: Heads, rope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Stacked projections to q, k, v, with q and k normed per head and rotated.

    qkv: (..., (heads + 2 · kv_heads) · head_dim); rope: (..., head_dim / 2, 2). Returns
    q (..., heads, head_dim) and k, v (..., kv_heads, head_dim).
    """
    parts = qkv.view(*qkv.shape[:-1], -1, heads.head_dim)
    q_heads = parts.shape[-2] - 2 * heads.kv_heads
    q, k, v = torch.split(parts, [q_heads, heads.kv_heads, heads.kv_heads], dim=-2)
    if heads.q_norm is not None and heads.k_norm is not None:
        q = rms_norm(q, heads.q_norm, heads.norm_eps)
        k = rms_norm(k, heads.k_norm, heads.norm_eps)
    return apply_rope(q, rope), apply_rope(k, rope), v


def store_decode_qkv(
    qkv: Tensor, heads: Heads, rope_table: Tensor, positions: Tensor, kv: PagedKV
) -> Tensor:
    """:func:`split_qkv` of one new position a row; keys and values go into their blocks.

    qkv: (rows, (heads + 2 · kv_heads) · head_dim); rope_table: (max positions, head_dim / 2,
    2) float32; positions: (rows,) int64. Writes into ``kv`` in place and returns q,
    (rows, heads, head_dim).
    """
    q, k, v = split_qkv(qkv, heads, rope_table[positions])
    blocks = kv.table.gather(1, (positions // kv.block_size)[:, None]).squeeze(1).long()
    inside = positions % kv.block_size
    kv.keys[blocks, :, inside] = k
    kv.values[blocks, :, inside] = v
    return q


def paged_decode_attention(q: Tensor, kv: PagedKV, last: Tensor) -> Tensor:
    """:func:`decode_attention` over keys and values in blocks.

    q: (rows, heads, head_dim); ``last``: (rows,) int64 newest position of each row, which it
    sees too. Table entries beyond it may name any block. Returns the shape of ``q``.
    """
    # (rows, max_blocks, kv_heads, block_size, head_dim) → (rows, kv_heads, length, head_dim)
    keys = kv.keys[kv.table.long()].transpose(1, 2).flatten(2, 3)
    values = kv.values[kv.table.long()].transpose(1, 2).flatten(2, 3)
    return decode_attention(q, keys, values, last)


def paged_prefill_attention(q: Tensor, kv: PagedKV, starts: Tensor) -> Tensor:
    """Causal grouped-query attention of several new positions a row over blocks.

    q: (rows, new, heads, head_dim), the first of a row at position starts[row]; their keys
    and values are in ``kv`` already. starts: (rows,) int64. A query sees the positions up to
    its own; those past the end of its row's prompt give results nobody reads. Returns the
    shape of ``q``.
    """
    # (rows, blocks, kv_heads, block_size, head_dim) → (rows, kv_heads, length, head_dim)
    keys = kv.keys[kv.table.long()].transpose(1, 2).flatten(2, 3)
    values = kv.values[kv.table.long()].transpose(1, 2).flatten(2, 3)
    own = starts[:, None] + torch.arange(q.shape[1], device=q.device)  # (rows, new)
    seen = torch.arange(keys.shape[2], device=q.device) <= own[:, None, :, None]
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, attn_mask=seen, enable_gqa=True
    )
    return out.transpose(1, 2)


def frame_attention(
    qkv: Tensor, heads: Heads, rope_table: Tensor, keys: Tensor, values: Tensor, start: int
) -> Tensor:
    """The fast AR's attention over the positions of one frame, storing the new ones.

    qkv: (rows, new, (heads + 2 · kv_heads) · head_dim) for the positions [start, start + new);
    rope_table: (positions, head_dim / 2, 2) float32; keys, values: (rows, kv_heads,
    codebooks, head_dim), those before ``start`` filled, the new ones written here. Causal.
    Returns (rows, new, heads · head_dim).
    """
    end = start + qkv.shape[1]
    q, k, v = split_qkv(qkv, heads, rope_table[start:end])
    keys[:, :, start:end] = k.transpose(1, 2)
    values[:, :, start:end] = v.transpose(1, 2)
    seen = torch.arange(end, device=q.device) <= torch.arange(start, end, device=q.device)[:, None]
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys[:, :, :end], values[:, :, :end], attn_mask=seen, enable_gqa=True
    )
    return out.transpose(1, 2).flatten(2)


def swiglu_stacked(gate_up: Tensor) -> Tensor:
    """:func:`swiglu` of halves: (..., 2 · mlp), the gate first → (..., mlp)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return swiglu(gate, up)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ: (..., in) and (out, in) → (..., out)."""
    return F.linear(x, weight)


def norm_linear(x: Tensor, norm: Tensor, eps: float, weight: Tensor) -> Tensor:
    """RMSNorm, then :func:`linear`."""
    return F.linear(rms_norm(x, norm, eps), weight)


def norm_swiglu_linear(x: Tensor, norm: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    """RMSNorm, then the gated half of a feed-forward; ``gate_up``: (2 · mlp, in), gate first."""
    return swiglu_stacked(F.linear(rms_norm(x, norm, eps), gate_up))


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """residual + x Wᵀ. Fused forms may write into ``residual``: the caller is done with it."""
    return residual + F.linear(x, weight)
