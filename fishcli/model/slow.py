"""The slow AR: a transformer over time, one position a text token or audio frame."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fishcli.kernels.ops import Ops
from fishcli.model.config import ModelConfig
from fishcli.model.layers import Attend, Transformer

HEAD_STEP = 16  # rows of the head are a multiple of this: odd sizes are slow to multiply by


class SlowAR(Transformer):
    """Reads grid columns, yields the hidden state from which a frame is drawn."""

    head: Tensor  # (V + 1 rounded up to HEAD_STEP, dim)

    def __init__(self, config: ModelConfig, ops: Ops) -> None:
        super().__init__(config.slow, ops)
        self._semantic = slice(config.semantic_start, config.semantic_end + 1)
        self._im_end = config.im_end
        self._num_codebooks = config.num_codebooks
        self._codebook_size = config.codebook_size
        self.embeddings = nn.Embedding(config.slow.vocab_size, config.slow.dim)
        # The checkpoint files this table under the audio decoder; it is an input of ours.
        self.codebook_embeddings = nn.Embedding(
            config.num_codebooks * config.codebook_size, config.slow.dim
        )
        self.register_buffer("head", torch.empty(0), persistent=False)

    def derive(self) -> None:
        """Also copy the rows of the tied embedding that can be sampled: semantic, then stop."""
        super().derive()
        table = self.embeddings.weight.detach()
        rows = [table[self._semantic], table[self._im_end : self._im_end + 1]]
        spare = -(self._codebook_size + 1) % HEAD_STEP
        self.head = torch.cat([*rows, table.new_zeros(spare, table.shape[1])])

    def embed(self, columns: Tensor) -> Tensor:
        """Grid columns (..., 1 + codebooks) int → input vectors (..., dim).

        Text: E[token]. Semantic: (E[token] + Σ A[i·V + code_i]) / sqrt(codebooks + 1).
        """
        tokens, codes = columns[..., 0], columns[..., 1:]
        offsets = torch.arange(self._num_codebooks, device=columns.device) * self._codebook_size
        text = self.embeddings(tokens)
        audio = self.codebook_embeddings(codes + offsets).sum(-2)
        semantic = (tokens >= self._semantic.start) & (tokens < self._semantic.stop)
        mixed = (text + audio) / (self._num_codebooks + 1) ** 0.5
        return torch.where(semantic.unsqueeze(-1), mixed, text)

    def forward(self, columns: Tensor, attend: Attend) -> Tensor:
        """columns: (..., 1 + codebooks) → hidden (..., dim), after the final norm."""
        return self.run(self.embed(columns), attend)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (rows, dim) → (rows, V + 1): the semantic entries in order, the stop last.

        Only these rows of the tied embedding can be sampled, so only they are computed.
        """
        return self.ops.linear(hidden, self.head)[:, : self._codebook_size + 1]
