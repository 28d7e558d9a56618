"""The transformer block that slow and fast AR share.

A block computes everything but the attention itself: that is handed in as an
:class:`Attend`, which owns keys and values. So caches and kernels change without
the model knowing.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from fishcli.kernels import reference
from fishcli.model.config import TransformerConfig


class Attend(Protocol):
    """Stores the new keys and values of ``layer`` and attends over all it knows.

    q: (rows, length, heads, head_dim); k, v: (rows, length, kv_heads, head_dim), rotated;
    returns (rows, length, heads, head_dim).
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class RMSNorm(nn.Module):
    """RMSNorm with a weight, over the last dimension."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return reference.rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Projections, optional q/k norm and RoPE around an :class:`Attend`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        q_dim = config.heads * config.head_dim
        kv_dim = config.kv_heads * config.head_dim
        self.wqkv = nn.Linear(config.dim, q_dim + 2 * kv_dim, bias=config.qkv_bias)
        self.wo = nn.Linear(q_dim, config.dim, bias=config.o_bias)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, rope: Tensor, layer: int, attend: Attend) -> Tensor:
        """x: (rows, length, dim); rope: (rows, length, head_dim / 2, 2)."""
        heads = self.wqkv(x).unflatten(-1, (self.heads + 2 * self.kv_heads, -1))
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = reference.apply_rope(q, rope), reference.apply_rope(k, rope)
        out: Tensor = self.wo(attend(layer, q, k, v).flatten(-2))
        return out


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) · w3 x)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.mlp_dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.mlp_dim, bias=False)
        self.w2 = nn.Linear(config.mlp_dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(reference.swiglu(self.w1(x), self.w3(x)))
        return out


class Block(nn.Module):
    """One pre-norm layer: attention, then feed-forward, each added to its input."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor, rope: Tensor, layer: int, attend: Attend) -> Tensor:
        """x: (rows, length, dim) → the same shape."""
        x = x + self.attention(self.attention_norm(x), rope, layer, attend)
        out: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return out


class Transformer(nn.Module):
    """A stack of blocks, its final norm and its RoPE table."""

    rope: Tensor

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        # Derived, not stored: filled by `make_rope` once the module has its device.
        self.register_buffer("rope", torch.empty(0), persistent=False)

    def make_rope(self, device: torch.device) -> None:
        """Compute the table of cosines and sines for max_seq_len positions (float32)."""
        config = self.config
        self.rope = reference.rope_table(
            config.max_seq_len, config.head_dim, config.rope_base, device
        )

    def run(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """x: (rows, length, dim), positions: (rows, length) → hidden after the final norm."""
        rope = self.rope[positions]
        for index, layer in enumerate(self.layers):
            x = layer(x, rope, index, attend)
        out: Tensor = self.norm(x)
        return out
