"""Residual vector quantization, and the transformers and resampling around it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fishcli.codec.config import CodecConfig
from fishcli.codec.layers import CausalConv1d, CausalConvTranspose1d, ConvNeXtBlock
from fishcli.codec.transformer import WindowedTransformer


class VectorQuantizer(nn.Module):
    """One codebook with its projections into and out of the codebook's few dimensions."""

    def __init__(self, dim: int, codebook_size: int, codebook_dim: int) -> None:
        super().__init__()
        self.in_proj = nn.Conv1d(dim, codebook_dim, 1)
        self.out_proj = nn.Conv1d(codebook_dim, dim, 1)
        self.codebook = nn.Embedding(codebook_size, codebook_dim)

    def encode(self, x: Tensor) -> Tensor:
        """(rows, dim, frames) -> (rows, frames) int64: the nearest entry by direction."""
        directions = F.normalize(self.in_proj(x), dim=1)
        entries = F.normalize(self.codebook.weight, dim=1)
        return torch.einsum("rdf,cd->rfc", directions, entries).argmax(-1)

    def decode(self, codes: Tensor) -> Tensor:
        """(rows, frames) int64 in range -> (rows, dim, frames)."""
        return self.out_proj(self.codebook(codes).transpose(1, 2))  # type: ignore[no-any-return]


class ResidualQuantizer(nn.Module):
    """A chain of quantizers: each encodes what those before it have left."""

    def __init__(self, dim: int, codebook_sizes: Sequence[int], codebook_dim: int) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(
            VectorQuantizer(dim, size, codebook_dim) for size in codebook_sizes
        )


class Quantizer(nn.Module):
    """Latent frames of the encoder to codes and back to latent frames for the decoder."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        dim, window = config.latent_dim, config.quantizer_window
        semantic, residual = config.codebook_sizes[:1], config.codebook_sizes[1:]
        self.semantic_quantizer = ResidualQuantizer(dim, semantic, config.codebook_dim)
        self.quantizer = ResidualQuantizer(dim, residual, config.codebook_dim)
        self.downsample = nn.Sequential(
            *(
                nn.Sequential(CausalConv1d(dim, dim, s, stride=s), ConvNeXtBlock(dim))
                for s in config.resample_strides
            )
        )
        self.upsample = nn.Sequential(
            *(
                nn.Sequential(CausalConvTranspose1d(dim, dim, s, s), ConvNeXtBlock(dim))
                for s in reversed(config.resample_strides)
            )
        )
        hidden = config.quantizer_mlp
        self.pre_module = WindowedTransformer(dim, hidden, config.pre_layers, window)
        self.post_module = WindowedTransformer(dim, hidden, config.post_layers, window)

    def encode(self, latent: Tensor) -> Tensor:
        """(rows, dim, time) -> codes (rows, codebooks, time / resampling) int32.

        The search runs in float32 whatever the network's dtype: a wrong first code shifts
        everything that the later codebooks encode.
        """
        rest = self.pre_module(self.downsample(latent)).float()
        codes = []
        for stage in self._stages():
            codes.append(stage.encode(rest))
            rest = rest - stage.decode(codes[-1])
        return torch.stack(codes, dim=1).int()

    def decode(self, codes: Tensor) -> Tensor:
        """(rows, codebooks, frames) int -> (rows, dim, frames), in the network's dtype.

        Codes beyond their codebook are clamped; ``codes`` itself is left as it is.
        """
        total = None
        for i, stage in enumerate(self._stages()):
            entries = stage.decode(codes[:, i].long().clamp(0, stage.codebook.num_embeddings - 1))
            total = entries if total is None else total + entries
        assert total is not None
        return self.post_module(total.to(self.post_module.norm.weight.dtype))  # type: ignore[no-any-return]

    def _stages(self) -> list[VectorQuantizer]:
        stages = itertools.chain(self.semantic_quantizer.quantizers, self.quantizer.quantizers)
        return [stage for stage in stages if isinstance(stage, VectorQuantizer)]
