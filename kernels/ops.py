"""Which form of each building block runs: plain PyTorch, or fused kernels.

The model and the engine are written against :class:`Ops` and never ask which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fishcli.kernels import reference, sampling
from fishcli.kernels.reference import Heads, PagedKV
from fishcli.kernels.sampling import Draws, SamplingState


@dataclass(frozen=True, slots=True)
class Ops:
    """One implementation of each function; contracts are those of the plain twins."""

    name: str
    linear: Callable[[Tensor, Tensor], Tensor]
    norm_linear: Callable[[Tensor, Tensor, float, Tensor], Tensor]
    norm_swiglu_linear: Callable[[Tensor, Tensor, float, Tensor], Tensor]
    linear_add: Callable[[Tensor, Tensor, Tensor], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    store_decode_qkv: Callable[[Tensor, Heads, Tensor, Tensor, PagedKV], Tensor]
    paged_decode_attention: Callable[[Tensor, PagedKV, Tensor], Tensor]
    frame_attention: Callable[[Tensor, Heads, Tensor, Tensor, Tensor, int], Tensor]
    sample_semantic: Callable[[Tensor, SamplingState, Tensor, Draws, Tensor | None], Tensor]
    sample_residual: Callable[[Tensor, SamplingState, Draws, int], Tensor]


PLAIN = Ops(
    name="plain",
    linear=reference.linear,
    norm_linear=reference.norm_linear,
    norm_swiglu_linear=reference.norm_swiglu_linear,
    linear_add=reference.linear_add,
    rms_norm=reference.rms_norm,
    store_decode_qkv=reference.store_decode_qkv,
    paged_decode_attention=reference.paged_decode_attention,
    frame_attention=reference.frame_attention,
    sample_semantic=sampling.sample_semantic,
    sample_residual=sampling.sample_residual,
)
