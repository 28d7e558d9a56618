"""The fast AR: a small transformer over the codebooks of one frame."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fishcli.kernels.ops import Ops
from fishcli.kernels.reference import Heads
from fishcli.model.config import ModelConfig
from fishcli.model.layers import Transformer


@dataclass(frozen=True, slots=True, eq=False)
class FrameCache:
    """Keys and values of one frame: (layers, rows, kv_heads, codebooks, head_dim) each.

    Rewritten from position 0 for every frame, so it never needs clearing.
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def allocate(cls, config: ModelConfig, rows: int, like: Tensor) -> FrameCache:
        """Room for ``rows`` rows, with the dtype and device of ``like``."""
        fast = config.fast
        shape = (fast.layers, rows, fast.kv_heads, config.num_codebooks, fast.head_dim)
        return cls(like.new_zeros(shape), like.new_zeros(shape))

    def rows(self, rows: slice) -> FrameCache:
        """A view of some rows."""
        return FrameCache(self.keys[:, rows], self.values[:, rows])


@dataclass(frozen=True, slots=True, eq=False)
class _AttendFrame:
    """An ``Attend`` over the positions of a frame from ``start`` on."""

    ops: Ops
    cache: FrameCache
    rope: Tensor
    start: int

    def __call__(self, layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        return self.ops.frame_attention(qkv, heads, self.rope, keys, values, self.start)


class FastAR(Transformer):
    """Position 0 is the slow hidden state, position k the code of codebook k - 1."""

    def __init__(self, config: ModelConfig, ops: Ops) -> None:
        super().__init__(config.fast, ops)
        self.embeddings = nn.Embedding(config.codebook_size, config.fast.dim)
        self.output = nn.Linear(config.fast.dim, config.codebook_size, bias=False)
        same_width = config.fast.dim == config.slow.dim
        self.project_in = None if same_width else nn.Linear(config.slow.dim, config.fast.dim)

    def project(self, hidden: Tensor) -> Tensor:
        """Slow hidden state (rows, slow dim) → the input of position 0 (rows, dim)."""
        if self.project_in is None:
            return hidden
        out: Tensor = self.project_in(hidden)
        return out

    def first(self, hidden: Tensor, code: Tensor, cache: FrameCache) -> Tensor:
        """Positions 0 and 1 in one pass over the weights.

        hidden: (rows, slow dim); code: (rows,) semantic code c0. Returns the logits of c1,
        (rows, V). The output of position 0 is not used by the model.
        """
        x = torch.stack([self.project(hidden), self.embeddings(code)], dim=1)
        return self._logits(x, 0, cache)

    def next(self, code: Tensor, position: int, cache: FrameCache) -> Tensor:
        """Position ``position`` ≥ 2 from code c(position - 1): logits of c(position), (rows, V)."""
        return self._logits(self.embeddings(code).unsqueeze(1), position, cache)

    def _logits(self, x: Tensor, start: int, cache: FrameCache) -> Tensor:
        """x: (rows, new, dim) for the positions [start, start + new)."""
        hidden = self.run(x, _AttendFrame(self.ops, cache, self.rope, start))
        return self.ops.linear(hidden[:, -1], self.output.weight)
