"""The slow AR: a transformer over time, one position a text token or audio frame."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fishcli.model.config import ModelConfig
from fishcli.model.layers import Attend, Transformer


class SlowAR(Transformer):
    """Reads grid columns, yields the hidden state from which a frame is drawn."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.slow)
        self.semantic_start = config.semantic_start
        self.semantic_end = config.semantic_end
        self.im_end = config.im_end
        self.num_codebooks = config.num_codebooks
        self.codebook_size = config.codebook_size
        self.embeddings = nn.Embedding(config.slow.vocab_size, config.slow.dim)
        # The checkpoint files this table under the audio decoder; it is an input of ours.
        self.codebook_embeddings = nn.Embedding(
            config.num_codebooks * config.codebook_size, config.slow.dim
        )

    def embed(self, columns: Tensor) -> Tensor:
        """Grid columns (..., 1 + codebooks) int → input vectors (..., dim).

        Text: E[token]. Semantic: (E[token] + Σ A[i·V + code_i]) / sqrt(codebooks + 1).
        """
        tokens, codes = columns[..., 0], columns[..., 1:]
        offsets = torch.arange(self.num_codebooks, device=columns.device) * self.codebook_size
        text = self.embeddings(tokens)
        audio = self.codebook_embeddings(codes + offsets).sum(-2)
        semantic = (tokens >= self.semantic_start) & (tokens <= self.semantic_end)
        mixed = (text + audio) / (self.num_codebooks + 1) ** 0.5
        return torch.where(semantic.unsqueeze(-1), mixed, text)

    def forward(self, columns: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """columns: (rows, length, 1 + codebooks) → hidden (rows, length, dim), normed."""
        return self.run(self.embed(columns), positions, attend)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (rows, dim) → (rows, V + 1): the semantic entries in order, the stop last.

        Only these rows of the tied embedding can be sampled, so only they are computed.
        """
        table = self.embeddings.weight
        semantic = F.linear(hidden, table[self.semantic_start : self.semantic_end + 1])
        stop = F.linear(hidden, table[self.im_end : self.im_end + 1])
        return torch.cat([semantic, stop], dim=-1)
