"""The device side of :mod:`fishcli.kernels.triton_linear`, which says what limits it.

Pointers that are None take no part: ``norm_ptr`` for an RMSNorm of one row x first,
``residual_ptr`` for a sum at the end. GATED: the weight has 2 · OUTPUTS rows, gates first,
and a program takes the same rows of both halves. With one row the first weights are asked
for before the wait for the predecessor, for no kernel writes them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fishcli.kernels.triton_norm import norm_scale, silu_times
from fishcli.kernels.triton_pdl import let_next_start, wait_for_inputs


@triton.jit
def _weights(weight_ptr, entry, step, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr):
    """(entries, steps) of the weight; zeros outside. Read once, so first out of the cache."""
    inside = (entry < OUTPUTS)[:, None] & (step < DEPTH)[None, :]
    at = weight_ptr + entry[:, None] * DEPTH + step[None, :]
    return tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def _row_sums(weights, x, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr):
    """Products summed over runs of eight inputs, which one thread holds: (out, in / 8)."""
    product = weights.to(tl.float32) * x.to(tl.float32)[None, :]
    return tl.sum(tl.reshape(product, (BLOCK_OUT, BLOCK_IN // 8, 8)), axis=2)


@triton.jit
def one_row_kernel(
    x_ptr,
    weight_ptr,
    norm_ptr,
    residual_ptr,
    out_ptr,
    eps,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    NORM_BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    entry = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    lane = tl.arange(0, BLOCK_IN)
    up_ptr = weight_ptr + OUTPUTS * DEPTH
    weights = _weights(weight_ptr, entry, lane, OUTPUTS, DEPTH)
    if GATED:
        ups = _weights(up_ptr, entry, lane, OUTPUTS, DEPTH)
    wait_for_inputs(PDL)
    if norm_ptr is not None:
        whole = tl.arange(0, NORM_BLOCK)
        wide = tl.load(x_ptr + whole, mask=whole < DEPTH, other=0.0).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(wide * wide) / DEPTH + eps)
    sums = tl.zeros((BLOCK_OUT, BLOCK_IN // 8), tl.float32)
    if GATED:
        up_sums = tl.zeros((BLOCK_OUT, BLOCK_IN // 8), tl.float32)
    for start in range(0, DEPTH, BLOCK_IN):
        step = start + lane
        # The next tile is on its way while this one is summed.
        following = _weights(weight_ptr, entry, step + BLOCK_IN, OUTPUTS, DEPTH)
        if GATED:
            following_ups = _weights(up_ptr, entry, step + BLOCK_IN, OUTPUTS, DEPTH)
        x = tl.load(x_ptr + step, mask=step < DEPTH, other=0.0)
        if norm_ptr is not None:
            scale = tl.load(norm_ptr + step, mask=step < DEPTH, other=0.0)
            x = norm_scale(x, scale, inverse)
        if GATED:
            up_sums += _row_sums(ups, x, BLOCK_OUT, BLOCK_IN)
            ups = following_ups
        sums += _row_sums(weights, x, BLOCK_OUT, BLOCK_IN)
        weights = following
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    total = tl.sum(sums, axis=1)
    out = total.to(dtype)
    if GATED:
        out = silu_times(out, tl.sum(up_sums, axis=1).to(dtype), dtype)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + entry, mask=entry < OUTPUTS, other=0.0)
        out = (residual.to(tl.float32) + total).to(dtype)
    tl.store(out_ptr + entry, out, mask=entry < OUTPUTS)


@triton.jit
def _sliced_weights(weight_ptr, entry, step, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr):
    """(slices, entries, steps) of the weight for ``step`` (slices, steps); zeros outside."""
    inside = (entry < OUTPUTS)[None, :, None] & (step < DEPTH)[:, None, :]
    at = weight_ptr + entry[None, :, None] * DEPTH + step[:, None, :]
    return tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def few_rows_kernel(
    x_ptr,
    weight_ptr,
    residual_ptr,
    out_ptr,
    rows,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    GATED: tl.constexpr,
    ROWS: tl.constexpr,
    SLICES: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    entry = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    row = tl.arange(0, ROWS)
    # A step is cut into slices, one a warp: a warp's chain of dependent products is short.
    width: tl.constexpr = BLOCK_IN // SLICES
    lane = tl.arange(0, SLICES)[:, None] * width + tl.arange(0, width)[None, :]
    up_ptr = weight_ptr + OUTPUTS * DEPTH
    wait_for_inputs(PDL)
    # The weights are the left operand: their many rows fill the matrix unit.
    sums = tl.zeros((SLICES, BLOCK_OUT, ROWS), tl.float32)
    if GATED:
        up_sums = tl.zeros((SLICES, BLOCK_OUT, ROWS), tl.float32)
    for start in range(0, DEPTH, BLOCK_IN):
        step = start + lane
        at = x_ptr + row[None, None, :] * DEPTH + step[:, :, None]
        inside = (step < DEPTH)[:, :, None] & (row < rows)[None, None, :]
        x = tl.load(at, mask=inside, other=0.0)  # (SLICES, width, ROWS)
        weights = _sliced_weights(weight_ptr, entry, step, OUTPUTS, DEPTH)
        if GATED:
            ups = _sliced_weights(up_ptr, entry, step, OUTPUTS, DEPTH)
        sums = tl.dot(weights, x, sums, input_precision="ieee")
        if GATED:
            up_sums = tl.dot(ups, x, up_sums, input_precision="ieee")
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    total = tl.sum(sums, axis=0)
    out = total.to(dtype)
    if GATED:
        out = silu_times(out, tl.sum(up_sums, axis=0).to(dtype), dtype)
    at = row[None, :] * OUTPUTS + entry[:, None]
    inside = (row < rows)[None, :] & (entry < OUTPUTS)[:, None]
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + at, mask=inside, other=0.0)
        out = (residual.to(tl.float32) + total).to(dtype)
    tl.store(out_ptr + at, out, mask=inside)
