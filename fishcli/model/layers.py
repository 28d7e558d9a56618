"""The transformer block that slow and fast AR share.

A block computes everything but the attention itself: that is handed in as an
:class:`Attend`, which owns keys, values and positions. The arithmetic comes from an
:class:`Ops`. So caches and kernels change without the model knowing.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from fishcli.kernels import reference
from fishcli.kernels.ops import Ops
from fishcli.kernels.reference import Heads
from fishcli.model.config import TransformerConfig


class Attend(Protocol):
    """Splits, norms and rotates ``qkv``, stores the new keys and values of ``layer``, attends.

    qkv: (..., (heads + 2 · kv_heads) · head_dim) → (..., heads · head_dim).
    """

    def __call__(self, layer: int, qkv: Tensor, heads: Heads) -> Tensor: ...


class Norm(nn.Module):
    """The weight of an RMSNorm over ``dim`` numbers."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))


class Attention(nn.Module):
    """Weights around an :class:`Attend`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self._config = config
        q_dim = config.heads * config.head_dim
        kv_dim = config.kv_heads * config.head_dim
        self.wqkv = nn.Linear(config.dim, q_dim + 2 * kv_dim, bias=config.qkv_bias)
        self.wo = nn.Linear(q_dim, config.dim, bias=config.o_bias)
        self.q_norm = Norm(config.head_dim) if config.qk_norm else None
        self.k_norm = Norm(config.head_dim) if config.qk_norm else None

    @property
    def split(self) -> Heads:
        """How ``wqkv``'s output splits into heads, with the weights of their norms."""
        config = self._config
        if self.q_norm is None or self.k_norm is None:
            return Heads(config.kv_heads, config.head_dim)
        norms = self.q_norm.weight, self.k_norm.weight
        return Heads(config.kv_heads, config.head_dim, *norms, config.norm_eps)


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) · w3 x). ``w13`` stacks the checkpoint's w1 and w3, w1 first."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.w13 = nn.Linear(config.dim, 2 * config.mlp_dim, bias=False)
        self.w2 = nn.Linear(config.mlp_dim, config.dim, bias=False)


class Block(nn.Module):
    """One pre-norm layer: attention, then feed-forward, each added to its input."""

    def __init__(self, config: TransformerConfig, ops: Ops) -> None:
        super().__init__()
        self._eps, self._ops = config.norm_eps, ops
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = Norm(config.dim)
        self.ffn_norm = Norm(config.dim)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        """x: (..., dim), not used by the caller any more → the same shape."""
        ops, eps = self._ops, self._eps
        attention, feed_forward = self.attention, self.feed_forward
        qkv = ops.norm_linear(x, self.attention_norm.weight, eps, attention.wqkv.weight)
        if attention.wqkv.bias is not None:
            qkv = qkv + attention.wqkv.bias
        attended = attend(layer, qkv, attention.split)
        x = ops.linear_add(attended, attention.wo.weight, x)
        if attention.wo.bias is not None:
            x = x + attention.wo.bias
        gated = ops.norm_swiglu_linear(x, self.ffn_norm.weight, eps, feed_forward.w13.weight)
        return ops.linear_add(gated, feed_forward.w2.weight, x)


class Transformer(nn.Module):
    """A stack of blocks, its final norm and its RoPE table."""

    rope: Tensor  # (max_seq_len, head_dim / 2, 2) float32

    def __init__(self, config: TransformerConfig, ops: Ops) -> None:
        super().__init__()
        self.config = config
        self.ops = ops
        self.layers = nn.ModuleList(Block(config, ops) for _ in range(config.layers))
        self.norm = Norm(config.dim)
        # Derived, not stored: filled by `derive` once the weights are there.
        self.register_buffer("rope", torch.empty(0), persistent=False)

    def derive(self) -> None:
        """Compute what follows from configuration and weights."""
        config = self.config
        device = self.norm.weight.device
        self.rope = reference.rope_table(
            config.max_seq_len, config.head_dim, config.rope_base, device
        )

    def run(self, x: Tensor, attend: Attend) -> Tensor:
        """x: (..., dim) → hidden of the same shape, after the final norm."""
        for index, layer in enumerate(self.layers):
            x = layer(x, index, attend)
        return self.ops.rms_norm(x, self.norm.weight, self.config.norm_eps)
