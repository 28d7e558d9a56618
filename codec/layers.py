"""The codec's causal building blocks; everything is (rows, channels, time).

Each convolution states its left ``context``: how many earlier input positions an output depends
on. The start of an utterance sees zeros there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fishcli.codec.config import CONVNEXT_EXPANSION

KERNEL = 7  # of the first, last, residual and depthwise convolutions
DILATIONS = (1, 3, 9)  # of the residual units in a block


class CausalConv1d(nn.Module):
    """Convolution whose output at t depends on inputs up to t only.

    Effective kernel K = (kernel - 1)·dilation + 1; ``context`` = K - stride zeros are put
    on the left. The time must be a multiple of the stride, so no window needs padding on
    the right.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            in_channels, out_channels, kernel, stride=stride, dilation=dilation, groups=groups
        )
        self.stride = stride
        self.context = (kernel - 1) * dilation + 1 - stride

    def forward(self, x: Tensor) -> Tensor:
        """(rows, in, time) -> (rows, out, time / stride)."""
        assert x.shape[-1] % self.stride == 0, (x.shape, self.stride)
        return self.conv(F.pad(x, (self.context, 0)))  # type: ignore[no-any-return]


class CausalConvTranspose1d(nn.Module):
    """Upsampling by ``stride``; kernel - stride samples are cut off the right.

    The kernel is a multiple of the stride, so an output depends on its own input position
    and ``context`` = kernel / stride - 1 before it.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int) -> None:
        super().__init__()
        assert kernel % stride == 0, (kernel, stride)
        self.conv = nn.ConvTranspose1d(in_channels, out_channels, kernel, stride=stride)
        self.stride = stride
        self.context = kernel // stride - 1

    def forward(self, x: Tensor) -> Tensor:
        """(rows, in, time) -> (rows, out, time · stride)."""
        return self.conv(x)[..., : x.shape[-1] * self.stride]  # type: ignore[no-any-return]


class Snake(nn.Module):
    """x + sin(αx)² / (α + 1e-9) with α per channel, in float32 whatever x is."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, time) -> the same shape and dtype."""
        alpha = self.alpha.float()
        wide = x.float()
        # In place where the tensor is our own: these are the largest tensors of the codec.
        bump = torch.mul(wide, alpha).sin_().square_().mul_((alpha + 1e-9).reciprocal())
        return bump.add_(wide).to(x.dtype)


class ResidualUnit(nn.Module):
    """snake → dilated conv k7 → snake → conv k1, plus the input."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Snake(channels),
            CausalConv1d(channels, channels, KERNEL, dilation=dilation),
            Snake(channels),
            CausalConv1d(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, time) -> the same shape."""
        return x + self.block(x)  # type: ignore[no-any-return]


class ConvNeXtBlock(nn.Module):
    """Depthwise conv k7 → LayerNorm → linear ×4 → GELU → linear → × gamma, plus the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = CONVNEXT_EXPANSION * channels
        self.dwconv = CausalConv1d(channels, channels, KERNEL, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, hidden)
        self.pwconv2 = nn.Linear(hidden, channels)
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, time) -> the same shape."""
        y: Tensor = self.norm(self.dwconv(x).transpose(1, 2))  # (rows, time, channels)
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + y.transpose(1, 2)
