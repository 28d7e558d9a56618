"""RMSNorm, its fusion with a residual sum, and SwiGLU of stacked projections.

Limit: launches at small batches (a row is 5 kB), bytes at large ones. A program takes a
whole row, held in registers, so that it is read once; the sum of its squares runs in an
order set by the row's width alone, never by the batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fishcli.kernels.triton_pdl import launch_options, let_next_start, wait_for_inputs

COLUMNS = 1024  # outputs of one program of swiglu_stacked


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of each row; see the twin. x: (rows, dim) contiguous; weight: (dim,)."""
    _check_norm(x, weight)
    rows, dim = x.shape
    normed = torch.empty_like(x)
    if rows:
        block, warps = _row_shape(dim)
        _rms_norm_kernel[(rows,)](
            x,
            x,
            weight,
            normed,
            normed,
            eps,
            DIM=dim,
            BLOCK=block,
            ADD=False,
            num_warps=warps,
            **launch_options(x),
        )
    return normed


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + delta and its RMSNorm, (normed, total); see the twin.

    x, delta: (rows, dim) contiguous; weight: (dim,); all of one dtype.
    """
    _check_norm(x, weight)
    assert delta.is_contiguous() and delta.shape == x.shape and delta.dtype == x.dtype
    rows, dim = x.shape
    normed, total = torch.empty_like(x), torch.empty_like(x)
    if rows:
        block, warps = _row_shape(dim)
        _rms_norm_kernel[(rows,)](
            x,
            delta,
            weight,
            normed,
            total,
            eps,
            DIM=dim,
            BLOCK=block,
            ADD=True,
            num_warps=warps,
            **launch_options(x),
        )
    return normed, total


def swiglu_stacked(gate_up: Tensor) -> Tensor:
    """silu(gate) · up; see the twin. gate_up: (rows, 2 · mlp) contiguous → (rows, mlp)."""
    assert gate_up.ndim == 2 and gate_up.is_contiguous() and gate_up.shape[1] % 2 == 0
    rows, mlp = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, mlp)
    if rows:
        grid = (rows, triton.cdiv(mlp, COLUMNS))
        options = launch_options(gate_up)
        _swiglu_kernel[grid](gate_up, out, MLP=mlp, BLOCK=COLUMNS, num_warps=4, **options)
    return out


def _check_norm(x: Tensor, weight: Tensor) -> None:
    assert x.ndim == 2 and x.is_contiguous(), (x.shape, x.stride())
    assert weight.is_contiguous() and weight.shape == x.shape[1:], (x.shape, weight.shape)
    assert weight.dtype == x.dtype, (x.dtype, weight.dtype)


def _row_shape(dim: int) -> tuple[int, int]:
    """The power of two that holds a row, and warps for eight numbers a thread."""
    block = triton.next_power_of_2(dim)
    return block, min(max(block // 256, 1), 16)


@triton.jit
def norm_scale(x, norm_weight, inverse):
    """x · inverse, cast back before ``norm_weight``: the two roundings of the plain twin.

    ``x`` is in the model's dtype, ``inverse`` float32; the shapes broadcast.
    """
    normed = (x.to(tl.float32) * inverse).to(x.dtype)
    # The product of two bfloat16 numbers is exact in float32: one rounding, as in the twin.
    return (normed.to(tl.float32) * norm_weight.to(tl.float32)).to(x.dtype)


@triton.jit
def silu_times(gate, up, dtype: tl.constexpr):
    """silu(gate) · up of numbers already rounded to ``dtype``; silu is rounded to it too."""
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(dtype)
    return (silu.to(tl.float32) * up.to(tl.float32)).to(dtype)


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    delta_ptr,
    weight_ptr,
    normed_ptr,
    total_ptr,
    eps,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    at = tl.program_id(0).to(tl.int64) * DIM + column
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    wait_for_inputs(PDL)
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    if ADD:
        delta = tl.load(delta_ptr + at, mask=inside, other=0.0)
        x = (x.to(tl.float32) + delta.to(tl.float32)).to(x.dtype)
        tl.store(total_ptr + at, x, mask=inside)
    wide = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide) / DIM + eps)
    tl.store(normed_ptr + at, norm_scale(x, weight, inverse), mask=inside)


@triton.jit
def _swiglu_kernel(gate_up_ptr, out_ptr, MLP: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < MLP
    row = tl.program_id(0).to(tl.int64)
    gate_at = gate_up_ptr + row * (2 * MLP) + column
    gate = tl.load(gate_at, mask=inside, other=0.0)
    up = tl.load(gate_at + MLP, mask=inside, other=0.0)
    tl.store(out_ptr + row * MLP + column, silu_times(gate, up, gate.dtype), mask=inside)
