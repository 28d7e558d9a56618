"""Every width, depth and window of the codec, read from a checkpoint's tensor shapes.

The codec has no config file upstream: widths, layer counts, strides and codebook sizes
follow from the shapes, only the two attention windows do not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fishcli.errors import RunError

SAMPLE_RATE = 44100  # Hz, mono
HEAD_DIM = 64  # of every attention head in the codec
CONVNEXT_EXPANSION = 4
BLOCKS = 4  # up- or downsampling blocks of decoder and encoder; their names are fixed
QUANTIZER_WINDOW = 128  # positions a query sees, itself included
ENCODER_WINDOW = 512

# Weight norm stores a weight as a direction v and a magnitude g, under either of two names.
WEIGHT_NORM_SUFFIXES = (
    (".parametrizations.weight.original1", ".parametrizations.weight.original0"),
    (".weight_v", ".weight_g"),
)
# Buffers that upstream stores although they can be recomputed.
IGNORED_SUFFIXES = (".freqs_cis", ".causal_mask")


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """Sizes of a codec; ``from_shapes`` reads them from a checkpoint."""

    encoder_dim: int  # channels after the encoder's first convolution; each block doubles them
    encoder_strides: tuple[int, ...]
    encoder_layers: int  # transformer layers behind the last encoder block
    encoder_mlp: int
    decoder_dim: int  # channels after the decoder's first convolution; each block halves them
    decoder_strides: tuple[int, ...]
    latent_dim: int  # width between encoder, quantizer and decoder
    resample_strides: tuple[int, ...]  # quantizer.downsample; quantizer.upsample mirrors it
    pre_layers: int  # transformer layers before quantizing
    post_layers: int  # and after
    quantizer_mlp: int
    codebook_sizes: tuple[int, ...]  # the semantic codebook first
    codebook_dim: int
    quantizer_window: int = QUANTIZER_WINDOW
    encoder_window: int = ENCODER_WINDOW

    def __post_init__(self) -> None:
        """Raise RunError for sizes that cannot make a codec."""
        for name in ("quantizer_window", "encoder_window"):
            if getattr(self, name) < 1:
                raise RunError(f"codec: {name} is {getattr(self, name)!r}: allowed is 1 or more")
        for name in ("encoder_strides", "decoder_strides"):
            if len(getattr(self, name)) != BLOCKS:
                raise RunError(f"codec: {name} is {getattr(self, name)!r}: {BLOCKS} are needed")
        if math.prod(self.decoder_strides) != math.prod(self.encoder_strides):
            raise RunError(
                f"codec: strides of encoder {self.encoder_strides} and decoder "
                f"{self.decoder_strides} make different frame lengths"
            )
        for name in ("latent_dim", "encoder_out_dim"):
            if getattr(self, name) % HEAD_DIM:
                raise RunError(f"codec: {name} is {getattr(self, name)}: not a multiple of 64")

    @property
    def hop_length(self) -> int:
        """Samples of one frame."""
        hop: int = math.prod((*self.encoder_strides, *self.resample_strides))
        return hop

    @property
    def num_codebooks(self) -> int:
        """Codes of one frame."""
        return len(self.codebook_sizes)

    @property
    def encoder_out_dim(self) -> int:
        """Channels behind the last encoder block."""
        return self.encoder_dim << len(self.encoder_strides)

    @classmethod
    def from_shapes(
        cls,
        shapes: Mapping[str, Sequence[int]],
        quantizer_window: int = QUANTIZER_WINDOW,
        encoder_window: int = ENCODER_WINDOW,
    ) -> CodecConfig:
        """Read the sizes from tensor names and shapes, weight-norm pairs or folded weights.

        Raises RunError naming the first tensor that is missing or has too few dimensions.
        """
        table = _Shapes(folded_shapes(shapes))
        quantizer, residual = "quantizer.", "quantizer.quantizer.quantizers"
        books = ["quantizer.semantic_quantizer.quantizers.0.codebook.weight"]
        books += [f"{residual}.{i}.codebook.weight" for i in range(table.count(residual))]
        down = quantizer + "downsample"
        transformer = "encoder.block.4.block.5.layers"
        return cls(
            encoder_dim=table.size("encoder.block.0.conv.weight", 0),
            encoder_strides=tuple(
                table.size(f"encoder.block.{i}.block.4.conv.weight", 2) // 2
                for i in range(1, BLOCKS + 1)
            ),
            encoder_layers=table.count(transformer),
            encoder_mlp=table.size(transformer + ".0.feed_forward.w1.weight", 0),
            decoder_dim=table.size("decoder.model.0.conv.weight", 0),
            decoder_strides=tuple(
                table.size(f"decoder.model.{i}.block.1.conv.weight", 2) // 2
                for i in range(1, BLOCKS + 1)
            ),
            latent_dim=table.size("decoder.model.0.conv.weight", 1),
            resample_strides=tuple(
                table.size(f"{down}.{i}.0.conv.weight", 2) for i in range(table.count(down))
            ),
            pre_layers=table.count(quantizer + "pre_module.layers"),
            post_layers=table.count(quantizer + "post_module.layers"),
            quantizer_mlp=table.size(quantizer + "pre_module.layers.0.feed_forward.w1.weight", 0),
            codebook_sizes=tuple(table.size(name, 0) for name in books),
            codebook_dim=table.size(books[0], 1),
            quantizer_window=quantizer_window,
            encoder_window=encoder_window,
        )


def folded_name(name: str) -> str | None:
    """The parameter a checkpoint entry belongs to, or None if it makes none of its own.

    ``x.parametrizations.weight.original1`` and ``x.weight_v`` carry the shape of
    ``x.weight``; their magnitudes ``original0`` and ``weight_g`` and the recomputable
    buffers have no parameter; every other entry keeps its name.
    """
    if name.endswith(IGNORED_SUFFIXES):
        return None
    for direction, magnitude in WEIGHT_NORM_SUFFIXES:
        if name.endswith(magnitude):
            return None
        if name.endswith(direction):
            return name.removesuffix(direction) + ".weight"
    return name


def folded_shapes(shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters after folding, from the shapes of the checkpoint's entries."""
    return {
        folded: tuple(shape)
        for name, shape in shapes.items()
        if (folded := folded_name(name)) is not None
    }


class _Shapes:
    """Looks sizes up by tensor name, with errors that name the tensor."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = shapes

    def size(self, name: str, dim: int) -> int:
        if name not in self._shapes:
            raise RunError(f"codec: missing tensor {name}")
        shape = self._shapes[name]
        if len(shape) <= dim:
            raise RunError(f"codec: {name} has the wrong shape {list(shape)}")
        return shape[dim]

    def count(self, prefix: str) -> int:
        """One more than the highest number N in names that start with ``prefix.N.``."""
        pattern = re.compile(re.escape(prefix) + r"\.(\d+)\.")
        numbers = [int(m[1]) for m in map(pattern.match, self._shapes) if m]
        if not numbers:
            raise RunError(f"codec: missing tensors {prefix}.0.*")
        return max(numbers) + 1
