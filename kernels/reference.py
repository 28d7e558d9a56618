"""Plain PyTorch forms of every kernel: the specification, and what a CPU runs.

A fused kernel of this package must agree with its twin here. Formulas follow the
published arithmetic of the S2 family; where a rounding matters it is said.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
