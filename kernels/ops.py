"""Which form of each building block runs: plain PyTorch, or fused kernels.

The model and the engine are written against :class:`Ops` and never ask which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
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
    # (rows, heads, head_dim, positions, device) → what attention keeps partial results in
    attention_workspace: Callable[[int, int, int, int, torch.device], Any]
    paged_decode_attention: Callable[[Tensor, PagedKV, Tensor, Any], Tensor]
    paged_prefill_attention: Callable[[Tensor, PagedKV, Tensor], Tensor]
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
    attention_workspace=lambda *_: None,
    paged_decode_attention=lambda q, kv, last, _: reference.paged_decode_attention(q, kv, last),
    paged_prefill_attention=reference.paged_prefill_attention,
    frame_attention=reference.frame_attention,
    sample_semantic=sampling.sample_semantic,
    sample_residual=sampling.sample_residual,
)

FUSED_NAME = "fused"
ATTENTION_SWITCH = "FISHCLI_KVCACHE_ATTN"  # environment: 1 (default), 0 or required


@dataclass(frozen=True, slots=True)
class Choice:
    """What :func:`choose_ops` found; ``problem`` says why kernels can't be used, if so."""

    ops: Ops
    problem: str = ""


def choose_ops(device: torch.device, switch: str = "1") -> Choice:
    """Fused kernels on a GPU where they work, else plain PyTorch.

    ``switch``: the value of FISHCLI_KVCACHE_ATTN. ``0`` takes plain attention, with the other
    kernels; ``required`` raises :class:`RuntimeError` where kernels can't be used. Raises
    :class:`ValueError` for any other value but ``1``.
    """
    if switch not in {"0", "1", "required"}:
        raise ValueError(f"{ATTENTION_SWITCH} is {switch!r}: allowed is 0, 1 or required")
    problem = kernel_problem(device)
    if problem:
        if switch == "required":
            raise RuntimeError(f"{ATTENTION_SWITCH}=required, but {problem}")
        return Choice(PLAIN, problem)
    from fishcli.kernels.fused import FUSED  # noqa: PLC0415 - needs Triton

    if switch == "0":
        return Choice(without_attention_kernel(FUSED))
    return Choice(FUSED)


def without_attention_kernel(ops: Ops) -> Ops:
    """``ops`` with plain attention over the paged cache."""
    return replace(
        ops,
        name=f"{ops.name}, plain attention",
        attention_workspace=PLAIN.attention_workspace,
        paged_decode_attention=PLAIN.paged_decode_attention,
        paged_prefill_attention=PLAIN.paged_prefill_attention,
    )


def kernel_problem(device: torch.device) -> str:
    """Why the kernels can't be used on ``device``; empty if they can. Runs one."""
    if device.type != "cuda":
        return "kernels need a CUDA device"
    try:
        from fishcli.kernels.fused import self_test  # noqa: PLC0415 - needs Triton

        self_test(device)
    except Exception as error:  # noqa: BLE001 - a broken Triton fails in any way it likes
        return f"Triton does not work here: {type(error).__name__}: {error}"
    return ""
