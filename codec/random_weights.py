"""A codec with random weights, for benches and tests: its audio is noise, not speech."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fishcli.codec.config import BLOCKS, CodecConfig
from fishcli.codec.layers import ResidualUnit
from fishcli.codec.model import Codec, parameter_dtype

BRANCH_GAIN = 0.1  # of what is added to a residual stream, as small as in a trained network
OUTPUT_GAIN = 0.1  # of the last convolution: loud, and far from where tanh saturates


def random_codec(
    config: CodecConfig,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Codec:
    """A codec of these sizes with random weights, made on ``device``.

    The same seed on the same kind of device gives the same weights. They are scaled by
    their fan-in, so that activations stay near one and the audio neither dies nor clips.
    """
    generator = torch.Generator(device).manual_seed(seed)
    codec = Codec.empty(config)
    scales = _weight_scales(codec)
    weights = {
        name: _parameter(name, like, scales.get(name), generator).to(parameter_dtype(name, dtype))
        for name, like in codec.state_dict().items()
    }
    codec.load_state_dict(weights, strict=True, assign=True)
    return codec


def _parameter(name: str, like: Tensor, scale: float | None, generator: torch.Generator) -> Tensor:
    if scale is not None:
        return torch.randn(like.shape, generator=generator, device=generator.device) * scale
    value = 0.0 if name.endswith(".bias") else BRANCH_GAIN if name.endswith(".gamma") else 1.0
    return torch.full(like.shape, value, device=generator.device)


def _weight_scales(codec: Codec) -> dict[str, float]:
    """Standard deviation of every random weight, by parameter name."""
    scales = {}
    for name, module in codec.named_modules():
        if isinstance(module, nn.Embedding):
            scales[f"{name}.weight"] = 1.0
        elif isinstance(module, nn.Linear):
            scales[f"{name}.weight"] = 1 / math.sqrt(module.in_features)
        elif isinstance(module, nn.ConvTranspose1d):
            taps = module.kernel_size[0] // module.stride[0]
            scales[f"{name}.weight"] = 1 / math.sqrt(module.in_channels * taps)
        elif isinstance(module, nn.Conv1d):
            scales[f"{name}.weight"] = 1 / math.sqrt(module.weight[0].numel())
    for name, module in codec.named_modules():
        if isinstance(module, ResidualUnit):
            scales[f"{name}.block.3.conv.weight"] *= BRANCH_GAIN
    scales[f"decoder.model.{BLOCKS + 2}.conv.weight"] *= OUTPUT_GAIN
    return scales
