"""Products of 9 to 256 rows with a weight matrix, on the matrix unit, split over its depth.

Limit: bytes, weight bytes / 4.2 TB/s on an H200, but from 64 rows on also what goes between
the L2 cache and the multiprocessors: each program reads x again, so a tile of 64 rows and
128 outputs moves 1.5 times the weights and one of 64 outputs twice. Tiles are therefore
wide, and where that leaves few of them (2560 outputs are 20 tiles of 128) the depth is cut
into a fixed number of parts. Their float32 sums go through L2 to a second kernel that adds
them in the order of the parts, then the residual, and rounds once; it can norm as well.
Gates and ups are taken in turn by one program, so both of a pair end in one thread.

x is the left operand: 64 rows, padded, fill the matrix unit's left side, and padding is
never read. A row's bits depend on ``depth`` and ``parts`` of the tile, so not on its company
nor its place while these are the same. Tiles of the same outputs run side by side and share
weights through L2. Weights are asked for into L2 before the predecessor ends.

``TILES`` says which products run here, by measurement; all others are cuBLAS's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from fishcli.kernels.triton_norm import rms_norm
from fishcli.kernels.triton_parts import parts_kernel, product_kernel
from fishcli.kernels.triton_pdl import launch_options

MAX_ROWS = 256
SUM_COLUMNS = 512  # of one program that adds up parts without a norm


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product is cut: into tiles of ``rows`` and ``outputs``, and ``parts`` of the depth.

    outputs: rows of the weight, gates and ups both counted. depth: inputs of one step.
    ahead: inputs, a power of two or 0, asked for into L2 before the predecessor ends.
    """

    rows: int
    outputs: int
    depth: int
    parts: int
    warps: int
    stages: int
    ahead: int = 0


# (rows of the weight, inputs, rows of x up to which) → tile. Empty until measured.
TILES: dict[tuple[int, int, int], Tile] = {}


def tile_for(x: Tensor, weight: Tensor) -> Tile | None:
    """The tile of x Wᵀ if it runs here, looked up by the next power of two of x's rows."""
    if x.dtype != torch.bfloat16 or not 0 < x.shape[0] <= MAX_ROWS:
        return None
    rows = max(16, triton.next_power_of_2(x.shape[0]))
    return TILES.get((weight.shape[0], weight.shape[1], rows))


def linear(x: Tensor, weight: Tensor, tile: Tile) -> Tensor:
    """x Wᵀ; see the twin. x: (rows, in); weight: (out, in); both contiguous."""
    sums = _product(x, weight, tile)
    return sums if tile.parts == 1 else _add_parts(sums, x)[1]


def norm_linear(x: Tensor, norm: Tensor, eps: float, weight: Tensor, tile: Tile) -> Tensor:
    """RMSNorm with weight ``norm`` (in,) in a launch of its own, then :func:`linear`."""
    return linear(rms_norm(x, norm, eps), weight, tile)


def norm_swiglu_linear(x: Tensor, norm: Tensor, eps: float, gate_up: Tensor, tile: Tile) -> Tensor:
    """RMSNorm and the gated half of a feed-forward; see the twin. The tile has one part.

    x: (rows, in); gate_up: (2 · mlp, in), gates first → (rows, mlp).
    """
    return _product(rms_norm(x, norm, eps), gate_up, tile, gated=True)


def linear_add(x: Tensor, weight: Tensor, residual: Tensor, tile: Tile) -> Tensor:
    """residual + x Wᵀ, added in float32 and rounded once. residual: (rows, out)."""
    if tile.parts == 1:
        return _product(x, weight, tile, residual=residual)
    return _add_parts(_product(x, weight, tile), x, residual)[1]


def linear_add_norm(
    x: Tensor, weight: Tensor, residual: Tensor, norm: Tensor, eps: float, tile: Tile
) -> tuple[Tensor, Tensor]:
    """:func:`linear_add` and the RMSNorm of its result: (normed, total), each (rows, out)."""
    if tile.parts == 1:
        total = _product(x, weight, tile, residual=residual)
        return rms_norm(total, norm, eps), total
    return _add_parts(_product(x, weight, tile), x, residual, norm, eps)


def _product(
    x: Tensor, weight: Tensor, tile: Tile, *, residual: Tensor | None = None, gated: bool = False
) -> Tensor:
    """The product with its epilogue: (rows, out), or with parts (parts, rows, out) float32."""
    rows, depth = x.shape
    outputs = weight.shape[0]
    assert 0 < rows <= MAX_ROWS, rows
    assert x.is_contiguous() and weight.is_contiguous()
    assert weight.shape[1] == depth, (x.shape, weight.shape)
    assert depth % 16 == 0 and weight.numel() < 2**31, weight.shape
    assert x.dtype == weight.dtype and x.dtype in (torch.bfloat16, torch.float32), x.dtype
    assert not gated or (tile.parts == 1 and outputs % 2 == 0), (outputs, tile)
    if residual is not None:
        _check_residual(residual, x, outputs)
    steps = triton.cdiv(depth, tile.depth)
    part_steps = triton.cdiv(steps, tile.parts)
    assert (tile.parts - 1) * part_steps < steps, (depth, tile)  # the last part has work
    if tile.parts > 1:
        out = x.new_empty(tile.parts, rows, outputs, dtype=torch.float32)
    else:
        out = x.new_empty(rows, outputs // 2 if gated else outputs)
    row_tiles, out_tiles = triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.outputs)
    product_kernel[(row_tiles * out_tiles * tile.parts,)](
        x,
        weight,
        residual,
        out,
        rows,
        row_tiles,
        OUTPUTS=outputs,
        DEPTH=depth,
        BLOCK_ROWS=tile.rows,
        BLOCK_OUT=tile.outputs,
        BLOCK_IN=tile.depth,
        PART_STEPS=part_steps,
        GATED=gated,
        AHEAD=tile.ahead if x.is_cuda else 0,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launch_options(x),
    )
    return out


def _add_parts(
    parts: Tensor,
    like: Tensor,
    residual: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(normed, total) in the dtype of ``like``; without ``norm`` both are the total."""
    count, rows, outputs = parts.shape
    total = like.new_empty(rows, outputs)
    normed = total
    block, warps = min(SUM_COLUMNS, triton.next_power_of_2(outputs)), 4
    if residual is not None:
        _check_residual(residual, like, outputs)
    if norm is not None:
        assert norm.is_contiguous() and norm.shape == (outputs,) and norm.dtype == like.dtype
        normed, block = torch.empty_like(total), triton.next_power_of_2(outputs)
        warps = min(max(block // 256, 1), 16)
    parts_kernel[(rows, triton.cdiv(outputs, block))](
        parts,
        residual,
        norm,
        normed,
        total,
        eps,
        rows,
        OUTPUTS=outputs,
        PARTS=count,
        BLOCK=block,
        num_warps=warps,
        **launch_options(like),
    )
    return normed, total


def _check_residual(residual: Tensor, x: Tensor, outputs: int) -> None:
    assert residual.is_contiguous() and residual.shape == (x.shape[0], outputs)
    assert residual.dtype == x.dtype
