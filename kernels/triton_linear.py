"""Products of up to eight rows with a weight matrix, fused with their neighbours.

Limit: bytes. Every weight is read once and used for a handful of multiply-adds, so a call
takes weight bytes / 4.2 TB/s on an H200 and not less. To come near, 30 to 60 kB a
multiprocessor must be under way all the time: a program takes a few whole rows of the
matrix (no second pass over partial sums), asks for its next tile before it uses the last,
and there are enough programs that all 132 multiprocessors hold several. With one row,
weights are asked for before the preceding kernel ends
(:mod:`~fishcli.kernels.triton_pdl`). One row of x is small (5 kB) and comes from L2, so
every program norms it again instead of waiting for a launch that would do it once; for
several rows that launch is faster (qkv 13.1 against 12.5 microseconds on an H200, gates and
ups 36.2 against 30.7).

One row is a multiply-and-sum in float32; 2 to 8 rows are padded to 8 columns of the matrix
unit. Either way sums run in an order that depends on the shape of the weight alone: a row
of 2 … 8 has the same bits in any company; alone, the other path may round otherwise unless
MATRIX_UNIT_FROM is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from fishcli.kernels.triton_norm import rms_norm
from fishcli.kernels.triton_pdl import launch_options
from fishcli.kernels.triton_products import few_rows_kernel, one_row_kernel

MAX_ROWS = 8
MATRIX_UNIT_FROM = 2  # rows
COLUMNS = 8  # of the matrix unit that the rows are padded to


@dataclass(frozen=True, slots=True)
class Tile:
    """How a program works: it takes ``outputs`` rows of the matrix in steps of ``depth``."""

    outputs: int
    depth: int
    warps: int
    stages: int


def one_row_tile(outputs: int, depth: int, gated: bool) -> Tile:
    """The tile for one row and a weight of (outputs, depth), or twice that if ``gated``."""
    if depth < 2048:
        return Tile(outputs=4, depth=256, warps=1, stages=1)
    return Tile(outputs=2 if gated or depth > 8192 else 4, depth=1024, warps=4, stages=1)


def few_rows_tile(outputs: int, depth: int, gated: bool, dtype: torch.dtype) -> Tile:
    """The same for 2 … MAX_ROWS rows."""
    if dtype == torch.float32:
        return Tile(outputs=16, depth=128, warps=4, stages=2)
    return Tile(outputs=16, depth=256 if gated else 512, warps=4, stages=4)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ; see the twin. x: (rows, in), rows ≤ MAX_ROWS; weight: (out, in); contiguous."""
    return _launch(x, weight)


def norm_linear(x: Tensor, norm: Tensor, eps: float, weight: Tensor) -> Tensor:
    """RMSNorm with weight ``norm`` (in,), then :func:`linear`; see the twin."""
    return _launch(x, weight, norm=norm, eps=eps)


def norm_swiglu_linear(x: Tensor, norm: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    """RMSNorm and the gated half of a feed-forward; see the twin.

    x: (rows, in); gate_up: (2 · mlp, in), gate first → (rows, mlp). A program takes the same
    rows of both halves, so gates and ups never leave it.
    """
    return _launch(x, gate_up, norm=norm, eps=eps, gated=True)


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """residual + x Wᵀ, rounded once, as cuBLAS does; see the twin. residual: (rows, out)."""
    return _launch(x, weight, residual=residual)


def _launch(
    x: Tensor,
    weight: Tensor,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    gated: bool = False,
    tile: Tile | None = None,
) -> Tensor:
    """Check, choose the path and its tile, launch; ``tile`` is for measurements only."""
    rows, depth = x.shape
    outputs = weight.shape[0] // 2 if gated else weight.shape[0]
    assert rows <= MAX_ROWS, rows
    assert x.is_contiguous() and weight.is_contiguous()
    assert weight.shape == (2 * outputs if gated else outputs, depth), (x.shape, weight.shape)
    assert depth % 16 == 0 and weight.numel() < 2**31, weight.shape
    assert x.dtype == weight.dtype and x.dtype in (torch.bfloat16, torch.float32), x.dtype
    if norm is not None:
        assert norm.is_contiguous() and norm.shape == (depth,) and norm.dtype == x.dtype
    if residual is not None:
        assert residual.is_contiguous() and residual.shape == (rows, outputs)
        assert residual.dtype == x.dtype
    out = x.new_empty(rows, outputs)
    if rows == 0:
        return out
    few = rows >= MATRIX_UNIT_FROM
    if tile is None and few:
        tile = few_rows_tile(outputs, depth, gated, x.dtype)
    tile = tile or one_row_tile(outputs, depth, gated)
    common = {
        "OUTPUTS": outputs,
        "DEPTH": depth,
        "BLOCK_OUT": tile.outputs,
        "BLOCK_IN": tile.depth,
        "GATED": gated,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    } | launch_options(x, False if few else None)  # with few rows it cost more than it hid
    grid = (triton.cdiv(outputs, tile.outputs),)
    if few:
        if norm is not None:
            x = rms_norm(x, norm, eps)
        few_rows_kernel[grid](
            x, weight, residual, out, rows, ROWS=COLUMNS, SLICES=tile.warps, **common
        )
    else:
        width = triton.next_power_of_2(depth)
        one_row_kernel[grid](x, weight, norm, residual, out, eps, NORM_BLOCK=width, **common)
    return out
