"""The fused forms of :class:`~fishcli.kernels.ops.Ops`: Triton kernels, and cuBLAS between.

Importing this needs Triton. Products of a few rows stream the weights through our own
kernels; larger ones are cuBLAS's, with our kernels around them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fishcli.kernels import triton_linear, triton_norm, triton_sampling
from fishcli.kernels.ops import FUSED_NAME, PLAIN, Ops
from fishcli.kernels.sampling import CounterDraws, Draws, SamplingState
from fishcli.kernels.triton_attention import AttentionWorkspace, paged_decode_attention
from fishcli.kernels.triton_frame import frame_attention
from fishcli.kernels.triton_heads import store_decode_qkv
from fishcli.kernels.triton_prefill import paged_prefill_attention


def _flat(x: Tensor) -> Tensor:
    """(..., n) → (rows, n), contiguous."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def _streams(x: Tensor) -> bool:
    """Whether ``x`` has so few rows that our own products beat cuBLAS."""
    return x.shape[0] <= triton_linear.MAX_ROWS


def linear(x: Tensor, weight: Tensor) -> Tensor:
    flat = _flat(x)
    out = triton_linear.linear(flat, weight) if _streams(flat) else F.linear(flat, weight)
    return out.view(*x.shape[:-1], -1)


def norm_linear(x: Tensor, norm: Tensor, eps: float, weight: Tensor) -> Tensor:
    flat = _flat(x)
    if _streams(flat):
        out = triton_linear.norm_linear(flat, norm, eps, weight)
    else:
        out = F.linear(triton_norm.rms_norm(flat, norm, eps), weight)
    return out.view(*x.shape[:-1], -1)


def norm_swiglu_linear(x: Tensor, norm: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    flat = _flat(x)
    if _streams(flat):
        out = triton_linear.norm_swiglu_linear(flat, norm, eps, gate_up)
    else:
        both = F.linear(triton_norm.rms_norm(flat, norm, eps), gate_up)
        out = triton_norm.swiglu_stacked(both)
    return out.view(*x.shape[:-1], -1)


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """Rounds the sum once, where the twin rounds twice; cuBLAS writes into ``residual``."""
    flat = _flat(x)
    if _streams(flat):
        out = triton_linear.linear_add(flat, weight, _flat(residual))
        return out.view(residual.shape)
    residual.view(flat.shape[0], -1).addmm_(flat, weight.t())
    return residual


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return triton_norm.rms_norm(_flat(x), weight, eps).view(x.shape)


def sample_semantic(
    logits: Tensor,
    sampling: SamplingState,
    window: Tensor,
    draws: Draws,
    ignore_stop: Tensor | None = None,
) -> Tensor:
    if not isinstance(draws, CounterDraws):
        return PLAIN.sample_semantic(logits, sampling, window, draws, ignore_stop)
    return triton_sampling.sample_semantic(
        logits[:, :-1], logits[:, -1:], sampling, window, draws.seed, draws.frame, ignore_stop
    )


def sample_residual(logits: Tensor, sampling: SamplingState, draws: Draws, codebook: int) -> Tensor:
    if not isinstance(draws, CounterDraws):
        return PLAIN.sample_residual(logits, sampling, draws, codebook)
    return triton_sampling.sample_residual(logits, sampling, draws.seed, draws.frame, codebook)


def self_test(device: torch.device) -> None:
    """Run a kernel once; raises whatever stands in the way of Triton here."""
    x = torch.ones(2, 64, device=device)
    out = triton_norm.rms_norm(x, torch.ones(64, device=device), 1e-6)
    if not torch.allclose(out, x, atol=1e-4):
        raise RuntimeError("a test kernel gave a wrong result")


FUSED = Ops(
    name=FUSED_NAME,
    linear=linear,
    norm_linear=norm_linear,
    norm_swiglu_linear=norm_swiglu_linear,
    linear_add=linear_add,
    rms_norm=rms_norm,
    store_decode_qkv=store_decode_qkv,
    attention_workspace=AttentionWorkspace.allocate,
    paged_decode_attention=paged_decode_attention,
    paged_prefill_attention=paged_prefill_attention,
    frame_attention=frame_attention,
    sample_semantic=sample_semantic,
    sample_residual=sample_residual,
)
