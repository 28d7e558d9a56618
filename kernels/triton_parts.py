"""The device side of :mod:`fishcli.kernels.triton_gemm`, which says what limits it.

Pointers that are None take no part. Weights are asked for into L2 before the wait for the
predecessor, for no kernel writes them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fishcli.kernels.triton_norm import norm_scale, silu_times
from fishcli.kernels.triton_pdl import let_next_start, prefetch, wait_for_inputs


@triton.jit
def product_kernel(
    x_ptr,
    weight_ptr,
    residual_ptr,
    out_ptr,
    rows,
    row_tiles,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    PART_STEPS: tl.constexpr,
    GATED: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    out_tiles: tl.constexpr = (OUTPUTS + BLOCK_OUT - 1) // BLOCK_OUT
    steps: tl.constexpr = (DEPTH + BLOCK_IN - 1) // BLOCK_IN
    tile = tl.program_id(0) // row_tiles
    row = tl.program_id(0) % row_tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    part = tile // out_tiles
    entry = tile % out_tiles * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    # Beyond the end the last row is read again, and its products are not stored.
    source = tl.minimum(entry, OUTPUTS - 1)
    if GATED:
        source = source % 2 * (OUTPUTS // 2) + source // 2  # gate, up, gate, up, …
    lane = tl.arange(0, BLOCK_IN)
    first = part * PART_STEPS
    if AHEAD:
        line: tl.constexpr = 1024 // weight_ptr.dtype.element_ty.primitive_bitwidth
        early = first * BLOCK_IN + tl.arange(0, AHEAD // line) * line
        asked = (source >= 0)[:, None] & (early < DEPTH)[None, :]
        prefetch(weight_ptr + source[:, None] * DEPTH + early[None, :], asked)
    wait_for_inputs(PDL)
    x_at = x_ptr + row[:, None] * DEPTH + lane[None, :]
    weight_at = weight_ptr + source[None, :] * DEPTH + lane[:, None]
    held = (row < rows)[:, None]
    sums = tl.zeros((BLOCK_ROWS, BLOCK_OUT), tl.float32)
    for step in range(first, tl.minimum(first + PART_STEPS, steps)):
        start = step * BLOCK_IN
        if DEPTH % BLOCK_IN == 0:
            x = tl.load(x_at + start, mask=held, other=0.0)
            weights = tl.load(weight_at + start)
        else:
            known = start + lane < DEPTH
            x = tl.load(x_at + start, mask=held & known[None, :], other=0.0)
            weights = tl.load(weight_at + start, mask=known[:, None], other=0.0)
        sums = tl.dot(x, weights, sums, input_precision="ieee")
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    if GATED:
        gate, up = tl.split(tl.reshape(sums, (BLOCK_ROWS, BLOCK_OUT // 2, 2)))
        half: tl.constexpr = OUTPUTS // 2
        pair = tile % out_tiles * (BLOCK_OUT // 2) + tl.arange(0, BLOCK_OUT // 2)
        out = silu_times(gate.to(dtype), up.to(dtype), dtype)
        inside = held & (pair < half)[None, :]
        tl.store(out_ptr + row[:, None] * half + pair[None, :], out, mask=inside)
    else:
        inside = held & (entry < OUTPUTS)[None, :]
        at = row[:, None] * OUTPUTS + entry[None, :]
        if residual_ptr is not None:
            sums += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + part * rows * OUTPUTS + at, sums.to(dtype), mask=inside)


@triton.jit
def parts_kernel(
    parts_ptr,
    residual_ptr,
    norm_ptr,
    normed_ptr,
    total_ptr,
    eps,
    rows,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < OUTPUTS
    at = tl.program_id(0) * OUTPUTS + column
    if norm_ptr is not None:
        scale = tl.load(norm_ptr + column, mask=inside, other=0.0)
    wait_for_inputs(PDL)
    sums = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        sums += tl.load(parts_ptr + part * rows * OUTPUTS + at, mask=inside, other=0.0)
    if residual_ptr is not None:
        sums += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    total = sums.to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + at, total, mask=inside)
    if norm_ptr is not None:
        wide = total.to(tl.float32)
        inverse = tl.rsqrt(tl.sum(wide * wide) / OUTPUTS + eps)
        tl.store(normed_ptr + at, norm_scale(total, scale, inverse), mask=inside)
