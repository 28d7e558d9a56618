"""The codec: 44.1 kHz mono audio to codes and back, causal throughout.

Parameter names are those of ``codec.pth`` with weight norm folded (see ``loader``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fishcli.codec.config import BLOCKS, SAMPLE_RATE, CodecConfig
from fishcli.codec.layers import (
    DILATIONS,
    KERNEL,
    CausalConv1d,
    CausalConvTranspose1d,
    ResidualUnit,
    Snake,
)
from fishcli.codec.quantizer import Quantizer
from fishcli.codec.transformer import WindowedTransformer

PIECE_FRAMES = 128  # frames whose waveform is made at once: bounds the memory of long rows


class EncoderBlock(nn.Module):
    """Residual units → snake → strided conv that doubles the channels → ``tail`` if any."""

    def __init__(self, channels: int, stride: int, tail: nn.Module | None) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(ResidualUnit(channels, dilation) for dilation in DILATIONS),
            Snake(channels),
            CausalConv1d(channels, 2 * channels, 2 * stride, stride=stride),
            *([] if tail is None else [tail]),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, time) -> (rows, 2 · channels, time / stride)."""
        return self.block(x)  # type: ignore[no-any-return]


class DecoderBlock(nn.Module):
    """Snake → transposed conv that halves the channels → residual units."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        half = channels // 2
        self.block = nn.Sequential(
            Snake(channels),
            CausalConvTranspose1d(channels, half, 2 * stride, stride),
            *(ResidualUnit(half, dilation) for dilation in DILATIONS),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, time) -> (rows, channels / 2, time · stride)."""
        return self.block(x)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Audio to latent frames."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        transformer = WindowedTransformer(
            config.encoder_out_dim,
            config.encoder_mlp,
            config.encoder_layers,
            config.encoder_window,
        )
        layers: list[nn.Module] = [CausalConv1d(1, config.encoder_dim, KERNEL)]
        for i, stride in enumerate(config.encoder_strides):
            tail = transformer if i == len(config.encoder_strides) - 1 else None
            layers.append(EncoderBlock(config.encoder_dim << i, stride, tail))
        layers.append(Snake(config.encoder_out_dim))
        layers.append(CausalConv1d(config.encoder_out_dim, config.latent_dim, 3))
        self.block = nn.Sequential(*layers)

    def forward(self, audio: Tensor) -> Tensor:
        """(rows, 1, samples) -> (rows, latent dim, samples / strides)."""
        return self.block(audio)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Latent frames to audio."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = [CausalConv1d(config.latent_dim, config.decoder_dim, KERNEL)]
        for i, stride in enumerate(config.decoder_strides):
            layers.append(DecoderBlock(config.decoder_dim >> i, stride))
        width = config.decoder_dim >> len(config.decoder_strides)
        layers += [Snake(width), CausalConv1d(width, 1, KERNEL), nn.Tanh()]
        self.model = nn.Sequential(*layers)

    def forward(self, latent: Tensor) -> Tensor:
        """(rows, latent dim, time) -> (rows, 1, time · strides) float32 in [-1, 1].

        The last convolution is in float32: a waveform of bfloat16 steps would hiss.
        """
        hidden: Tensor = self.model[:-2](latent)
        return self.model[-2:](hidden.float())  # type: ignore[no-any-return]


class Codec(nn.Module):
    """Encodes and decodes batches of rows; inference only."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.quantizer = Quantizer(config)
        self.decoder = Decoder(config)
        self._context_frames = context_frames(self)

    @property
    def sample_rate(self) -> int:
        """Samples a second."""
        return SAMPLE_RATE

    @property
    def hop_length(self) -> int:
        """Samples of one frame."""
        return self.config.hop_length

    @property
    def num_codebooks(self) -> int:
        """Codes of one frame."""
        return self.config.num_codebooks

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        """Entries of each codebook, the semantic one first."""
        return self.config.codebook_sizes

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.quantizer.post_module.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What the network computes in; snake, norms, quantizers, waveform stay in float32."""
        return self.quantizer.post_module.norm.weight.dtype

    @classmethod
    def empty(cls, config: CodecConfig) -> Codec:
        """The modules without memory behind them; the caller assigns every parameter."""
        with torch.device("meta"):
            return cls(config).eval().requires_grad_(False)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes to audio.

        codes: (rows, codebooks, frames) int on any device, left untouched; values beyond
        their codebook are clamped. Returns (rows, frames · hop) float32 in [-1, 1] on the
        codec's device. Causal: frames to the right of a row's end do not change its samples.
        Rows and frames may be 0.
        """
        assert codes.ndim == 3 and codes.shape[1] == self.num_codebooks, codes.shape
        rows, _, frames = codes.shape
        audio = torch.empty(rows, frames * self.hop_length, device=self.device)
        if audio.numel() == 0:
            return audio
        latent = self.quantizer.decode(codes.to(self.device))
        for start in range(0, frames, PIECE_FRAMES):
            stop = min(start + PIECE_FRAMES, frames)
            samples = slice(start * self.hop_length, stop * self.hop_length)
            audio[:, samples] = self._waveform(latent, start, stop)
        return audio

    @torch.inference_mode()
    def encode(self, audio: Tensor) -> Tensor:
        """Audio to codes.

        audio: (rows, samples) float at the codec's sample rate, on any device. Returns
        (rows, codebooks, ceil(samples / hop)) int32 on the codec's device. Causal: zeros to
        the right of a row's end do not change the codes of its ceil(own samples / hop) frames.
        """
        assert audio.ndim == 2, audio.shape
        rows, samples = audio.shape
        frames = -(-samples // self.hop_length)
        if rows == 0 or frames == 0:
            shape = (rows, self.num_codebooks, frames)
            return torch.empty(shape, dtype=torch.int32, device=self.device)
        wave = audio.to(self.device, self.dtype)[:, None]  # (rows, 1, samples)
        wave = F.pad(wave, (0, frames * self.hop_length - samples))
        return self.quantizer.encode(self.encoder(wave))

    def _waveform(self, latent: Tensor, start: int, stop: int) -> Tensor:
        """(rows, latent dim, frames) -> samples of the frames start … stop - 1.

        The convolutions see a limited past, so a piece is computed from its own frames and
        that past, whose samples are cut off again.
        """
        first = max(0, start - self._context_frames)
        wave = self.decoder(self.quantizer.upsample(latent[..., first:stop]))[:, 0]
        return wave[:, (start - first) * self.hop_length :]  # type: ignore[no-any-return]


def context_frames(codec: Codec) -> int:
    """Earlier frames that the waveform of a frame depends on, in upsampling and decoder.

    Goes back from the last layer, counting positions at the rate of each layer's input.
    """
    layers = [*codec.quantizer.upsample.modules(), *codec.decoder.modules()]
    positions = 0
    for layer in reversed(layers):
        if isinstance(layer, CausalConvTranspose1d):
            positions = -(-positions // layer.stride) + layer.context
        elif isinstance(layer, CausalConv1d):
            positions += layer.context
    return positions


def parameter_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """Snake's α, quantizers and the last convolution stay in float32, the rest is ``dtype``."""
    last = f"decoder.model.{BLOCKS + 2}."
    wide = name.endswith(".alpha") or ".quantizers." in name or name.startswith(last)
    return torch.float32 if wide else dtype
