"""Products of 9 to 256 rows against their twins in float64, split over the depth or not."""

import pytest
import torch

from fishcli.kernels import fused, reference, triton_gemm
from fishcli.kernels.triton_gemm import Tile
from tests.kernels.judge import assert_close

EPS = 1e-6
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
ROWS = pytest.mark.parametrize("rows", [9, 16, 33])
# Toy sizes, few outputs, depths that end exactly on a step and just beside it.
SIZES = pytest.mark.parametrize(("outputs", "depth"), [(96, 96), (2, 256), (40, 272)])
PARTS = pytest.mark.parametrize("parts", [1, 3])


def tile(dtype, parts=1, depth=32):
    if dtype == torch.float32:
        return Tile(rows=16, outputs=32, depth=depth, parts=parts, warps=4, stages=2)
    return Tile(rows=64, outputs=64, depth=depth, parts=parts, warps=4, stages=3, ahead=64)


def numbers(*shape, dtype, device, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(device, dtype)


def operands(rows, outputs, depth, dtype, device):
    if device.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 matrices")
    x = numbers(rows, depth, dtype=dtype, device=device, scale=2.0)
    weight = numbers(outputs, depth, dtype=dtype, device=device, seed=1, scale=depth**-0.5)
    norm = numbers(depth, dtype=dtype, device=device, seed=2)
    return x, weight, norm


@DTYPES
@ROWS
@SIZES
@PARTS
def test_linear_agrees_with_its_twin(device, rows, outputs, depth, dtype, parts):
    x, weight, norm = operands(rows, outputs, depth, dtype, device)
    actual = triton_gemm.linear(x, weight, tile(dtype, parts))
    assert_close(actual, reference.linear, x, weight)
    actual = triton_gemm.norm_linear(x, norm, EPS, weight, tile(dtype, parts))
    assert_close(actual, reference.norm_linear, x, norm, EPS, weight)


@DTYPES
@ROWS
@SIZES
@PARTS
def test_linear_add_agrees_with_its_twin(device, rows, outputs, depth, dtype, parts):
    x, weight, _ = operands(rows, outputs, depth, dtype, device)
    residual = numbers(rows, outputs, dtype=dtype, device=device, seed=3)
    kept = residual.clone()
    actual = triton_gemm.linear_add(x, weight, residual, tile(dtype, parts))
    assert_close(actual, reference.linear_add, x, weight, kept)


@DTYPES
@ROWS
@SIZES
@PARTS
def test_linear_add_norm_is_the_sum_and_its_norm(device, rows, outputs, depth, dtype, parts):
    x, weight, _ = operands(rows, outputs, depth, dtype, device)
    residual = numbers(rows, outputs, dtype=dtype, device=device, seed=3)
    norm = numbers(outputs, dtype=dtype, device=device, seed=4)
    cut = tile(dtype, parts)
    normed, total = triton_gemm.linear_add_norm(x, weight, residual, norm, EPS, cut)
    assert torch.equal(total, triton_gemm.linear_add(x, weight, residual, cut))
    assert_close(total, reference.linear_add, x, weight, residual)
    assert_close(normed, reference.rms_norm, total, norm, EPS)


@DTYPES
@ROWS
@SIZES
def test_norm_swiglu_linear_agrees_with_its_twin(device, rows, outputs, depth, dtype):
    x, weight, norm = operands(rows, 2 * outputs, depth, dtype, device)
    actual = triton_gemm.norm_swiglu_linear(x, norm, EPS, weight, tile(dtype))
    assert_close(actual, reference.norm_swiglu_linear, x, norm, EPS, weight)


@PARTS
def test_the_residual_is_added_before_the_only_rounding(device, parts):
    dtype = torch.bfloat16
    x, weight, _ = operands(9, 1, 96, dtype, device)
    x.zero_()
    x[:, 0], x[:, 1] = 1.0, 2.0**-9  # rounded alone, the product would be 1
    minus = torch.full((9, 1), -1.0, dtype=dtype, device=device)
    actual = triton_gemm.linear_add(x, torch.ones_like(weight), minus, tile(dtype, parts))
    assert actual.tolist() == [[2.0**-9]] * 9


@DTYPES
@PARTS
def test_a_row_is_the_same_in_any_company_and_place(device, dtype, parts):
    x, weight, norm = operands(33, 48, 272, dtype, device)
    cut = tile(dtype, parts)
    together = triton_gemm.norm_linear(x, norm, EPS, weight, cut)
    for rows in (9, 16, 20):
        # numpy, which multiplies under the interpreter, rounds a row otherwise elsewhere.
        kept = slice(0, rows) if device.type == "cpu" else slice(-rows, None)
        alone = triton_gemm.norm_linear(x[kept].contiguous(), norm, EPS, weight, cut)
        assert torch.equal(alone, together[kept])


@PARTS
def test_poison_beside_the_operands_is_not_read(device, parts):
    outputs, depth, rows = 20, 272, 17
    held = torch.full((rows + 2, depth), float("nan"), device=device)
    held[1:-1] = numbers(rows, depth, dtype=torch.float32, device=device)
    weights = torch.full((outputs + 40, depth), float("nan"), device=device)
    weights[:outputs] = numbers(outputs, depth, dtype=torch.float32, device=device, seed=1)
    x, weight = held[1:-1], weights[:outputs]
    actual = triton_gemm.linear(x, weight, tile(torch.float32, parts))
    assert_close(actual, reference.linear, x, weight)


def test_a_tile_whose_last_part_would_have_no_work_is_refused(device):
    x, weight = torch.zeros(9, 128, device=device), torch.zeros(16, 128, device=device)
    with pytest.raises(AssertionError):
        triton_gemm.linear(x, weight, tile(torch.float32, parts=3))  # 4 steps in parts of 2


@pytest.mark.parametrize(("rows", "found"), [(9, 16), (16, 16), (17, None), (300, None)])
def test_only_products_of_the_table_run_here(device, monkeypatch, rows, found):
    monkeypatch.setattr(triton_gemm, "TILES", {(32, 64, 16): tile(torch.bfloat16)})
    x = torch.zeros(rows, 64, dtype=torch.bfloat16, device=device)
    weight = torch.zeros(32, 64, dtype=torch.bfloat16, device=device)
    assert (triton_gemm.tile_for(x, weight) is not None) == (found is not None)
    assert triton_gemm.tile_for(x.float(), weight.float()) is None


def test_fused_forms_consult_the_table(device, monkeypatch):
    monkeypatch.setattr(triton_gemm, "tile_for", lambda x, weight: tile(x.dtype))
    called = []
    product = triton_gemm._product
    monkeypatch.setattr(
        triton_gemm, "_product", lambda *a, **k: called.append(1) or product(*a, **k)
    )
    x, weight, norm = operands(10, 96, 96, torch.float32, device)
    assert_close(fused.linear(x, weight), reference.linear, x, weight)
    actual = fused.norm_linear(x, norm, EPS, weight)
    assert_close(actual, reference.norm_linear, x, norm, EPS, weight)
    actual = fused.norm_swiglu_linear(x, norm, EPS, weight)
    assert_close(actual, reference.norm_swiglu_linear, x, norm, EPS, weight)
    actual = fused.linear_add(x, weight, x.clone())
    assert_close(actual, reference.linear_add, x, weight, x)
    assert len(called) == 4
