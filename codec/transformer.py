"""The codec's causal transformer with windowed attention and layer scale."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fishcli.codec.config import HEAD_DIM

ROPE_BASE = 10000.0
NORM_EPS = 1e-5
QUERY_BLOCK = 512  # queries that attend at once: bounds the memory of long rows


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 and cast back before the weight."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """(…, dim) -> the same shape and dtype."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS)
        return (wide * scale).to(x.dtype) * self.weight


class RotaryTable:
    """Cosines and sines of the rotary embedding, for as many positions as are asked for.

    The table is rounded to bfloat16, as in training, and kept in float32. It is always
    computed on the CPU: another device's cosine may differ in the last bit, and then
    rounds to another bfloat16 now and then.
    """

    def __init__(self) -> None:
        self._table = torch.empty(0, HEAD_DIM // 2, 2)

    def rows(self, length: int, device: torch.device) -> Tensor:
        """(length, head dim / 2, 2) float32 for positions 0 … length - 1."""
        if self._table.shape[0] < length or self._table.device != device:
            size = max(1024, 1 << (length - 1).bit_length())
            self._table = rotary_table(size).to(device)
        return self._table[:length]


def rotary_table(length: int) -> Tensor:
    """(length, head dim / 2, 2) cosines and sines, float32 values rounded to bfloat16.

    Angle of pair j at position p: p · base^(-2j / head dim).
    """
    pairs = torch.arange(0, HEAD_DIM, 2, dtype=torch.float32, device="cpu")
    frequencies = 1.0 / ROPE_BASE ** (pairs / HEAD_DIM)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device="cpu"), frequencies)
    return torch.stack([angles.cos(), angles.sin()], dim=-1).bfloat16().float()


def rotate_pairs(x: Tensor, table: Tensor) -> Tensor:
    """Rotate the adjacent pairs (2j, 2j + 1) of (rows, heads, time, head dim), in float32."""
    wide = x.float()
    even, odd = wide[..., 0::2], wide[..., 1::2]
    cos, sin = table.unbind(-1)  # (time, head dim / 2) each
    rotated = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1)
    return rotated.flatten(-2).to(x.dtype)


def windowed_attention(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Causal attention in which a query sees itself and the window - 1 positions before it.

    q, k, v: (rows, heads, time, head dim). Goes through the queries in blocks with only
    the keys each block can see, so memory grows with time, not with its square.
    """
    time = q.shape[2]
    out = torch.empty_like(q)
    for start in range(0, time, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, time)
        first = max(0, start - window + 1)
        distance = (
            torch.arange(start, stop, device=q.device)[:, None]
            - torch.arange(first, stop, device=q.device)[None, :]
        )
        out[:, :, start:stop] = F.scaled_dot_product_attention(
            q[:, :, start:stop],
            k[:, :, first:stop],
            v[:, :, first:stop],
            attn_mask=(distance >= 0) & (distance < window),
        )
    return out


class Attention(nn.Module):
    """Full multi-head attention; ``wqkv`` stacks the q, k and v rows in that order."""

    def __init__(self, dim: int, window: int) -> None:
        super().__init__()
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.window = window

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """(rows, time, dim) -> the same shape."""
        # (rows, time, 3 · dim) -> three of (rows, heads, time, head dim)
        q, k, v = self.wqkv(x).view(*x.shape[:2], 3, -1, HEAD_DIM).permute(2, 0, 3, 1, 4)
        y = windowed_attention(rotate_pairs(q, table), rotate_pairs(k, table), v, self.window)
        return self.wo(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """w2(silu(w1 x) · w3 x)."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, time, dim) -> the same shape."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]


class LayerScale(nn.Module):
    """A learned factor per channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """(…, dim) -> the same shape."""
        return x * self.gamma


class TransformerLayer(nn.Module):
    """Pre-norm attention and feed-forward, each scaled before it is added."""

    def __init__(self, dim: int, hidden: int, window: int) -> None:
        super().__init__()
        self.attention = Attention(dim, window)
        self.feed_forward = FeedForward(dim, hidden)
        self.attention_norm = RMSNorm(dim)
        self.ffn_norm = RMSNorm(dim)
        self.attention_layer_scale = LayerScale(dim)
        self.ffn_layer_scale = LayerScale(dim)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """(rows, time, dim) -> the same shape."""
        x = x + self.attention_layer_scale(self.attention(self.attention_norm(x), table))
        return x + self.ffn_layer_scale(self.feed_forward(self.ffn_norm(x)))  # type: ignore[no-any-return]


class WindowedTransformer(nn.Module):
    """A stack of layers and a final norm; positions count from the start of the utterance."""

    def __init__(self, dim: int, hidden: int, layers: int, window: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(dim, hidden, window) for _ in range(layers))
        self.norm = RMSNorm(dim)
        self._rotary = RotaryTable()

    def forward(self, x: Tensor) -> Tensor:
        """(rows, dim, time) -> the same shape: channels first, as the convolutions around it."""
        table = self._rotary.rows(x.shape[-1], x.device)
        y = x.transpose(1, 2)  # (rows, time, dim)
        for layer in self.layers:
            y = layer(y, table)
        return self.norm(y).transpose(1, 2)  # type: ignore[no-any-return]
