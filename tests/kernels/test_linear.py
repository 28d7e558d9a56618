"""Products of few rows against their twins in float64, on both paths."""

import pytest
import torch

from fishcli.kernels import reference, triton_linear
from fishcli.kernels.triton_linear import MATRIX_UNIT_FROM, MAX_ROWS
from tests.kernels.judge import assert_close

EPS = 1e-6
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
ROWS = pytest.mark.parametrize("rows", [1, 3, 8])
# Toy sizes, one output, depths that end exactly on a step and just beside it.
SIZES = pytest.mark.parametrize(("outputs", "depth"), [(96, 96), (1, 256), (9, 2064)])


def numbers(*shape, dtype, device, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(device, dtype)


def operands(rows, outputs, depth, dtype, device):
    if device.type == "cpu" and dtype == torch.bfloat16 and rows >= MATRIX_UNIT_FROM:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 matrices")
    x = numbers(rows, depth, dtype=dtype, device=device, scale=2.0)
    weight = numbers(outputs, depth, dtype=dtype, device=device, seed=1, scale=depth**-0.5)
    norm = numbers(depth, dtype=dtype, device=device, seed=2)
    return x, weight, norm


@DTYPES
@ROWS
@SIZES
def test_linear_agrees_with_its_twin(device, rows, outputs, depth, dtype):
    x, weight, _ = operands(rows, outputs, depth, dtype, device)
    assert_close(triton_linear.linear(x, weight), reference.linear, x, weight)


@DTYPES
@ROWS
@SIZES
def test_linear_add_agrees_with_its_twin(device, rows, outputs, depth, dtype):
    x, weight, _ = operands(rows, outputs, depth, dtype, device)
    residual = numbers(rows, outputs, dtype=dtype, device=device, seed=3)
    kept = residual.clone()
    actual = triton_linear.linear_add(x, weight, residual)
    assert_close(actual, reference.linear_add, x, weight, kept)


@DTYPES
@ROWS
@SIZES
def test_norm_linear_agrees_with_its_twin(device, rows, outputs, depth, dtype):
    x, weight, norm = operands(rows, outputs, depth, dtype, device)
    actual = triton_linear.norm_linear(x, norm, EPS, weight)
    assert_close(actual, reference.norm_linear, x, norm, EPS, weight)


@DTYPES
@ROWS
@SIZES
def test_norm_swiglu_linear_agrees_with_its_twin(device, rows, outputs, depth, dtype):
    x, weight, norm = operands(rows, 2 * outputs, depth, dtype, device)
    actual = triton_linear.norm_swiglu_linear(x, norm, EPS, weight)
    assert_close(actual, reference.norm_swiglu_linear, x, norm, EPS, weight)


@DTYPES
def test_product_and_residual_are_rounded_once_as_a_sum(device, dtype):
    # 1 + 2⁻⁹ would round to 1 in bfloat16 before the residual takes the 1 away.
    x = torch.zeros(1, 16, dtype=dtype, device=device)
    x[0, 0], x[0, 1] = 1.0, 2.0**-9
    weight = torch.ones(1, 16, dtype=dtype, device=device)
    for rows in (1, 2):
        if device.type == "cpu" and dtype == torch.bfloat16 and rows >= MATRIX_UNIT_FROM:
            continue
        minus = torch.full((rows, 1), -1.0, dtype=dtype, device=device)
        actual = triton_linear.linear_add(x.expand(rows, -1).contiguous(), weight, minus)
        assert actual.tolist() == [[2.0**-9]] * rows


@DTYPES
def test_a_row_is_the_same_in_any_company_on_one_path(device, dtype):
    x, weight, norm = operands(MAX_ROWS, 48, 1040, dtype, device)
    together = triton_linear.norm_linear(x, norm, EPS, weight)
    for rows in range(MATRIX_UNIT_FROM, MAX_ROWS):
        alone = triton_linear.norm_linear(x[-rows:].contiguous(), norm, EPS, weight)
        assert torch.equal(alone, together[-rows:])


@ROWS
def test_poison_beside_the_operands_is_not_read(device, rows):
    outputs, depth = 20, 48
    held = torch.full((rows + 2, depth), float("nan"), device=device)
    held[1:-1] = numbers(rows, depth, dtype=torch.float32, device=device)
    weights = torch.full((outputs + 40, depth), float("nan"), device=device)
    weights[:outputs] = numbers(outputs, depth, dtype=torch.float32, device=device, seed=1)
    x, weight = held[1:-1], weights[:outputs]
    assert_close(triton_linear.linear(x, weight), reference.linear, x, weight)


def test_the_float32_path_of_the_matrix_unit_takes_no_short_cut(device):
    x = torch.full((2, 16), 1.0 + 2.0**-20, device=device)  # tf32 would drop the 2⁻²⁰
    weight = torch.ones(16, 16, device=device)
    expected = 16 * (1.0 + 2.0**-20)
    assert triton_linear.linear(x, weight).eq(expected).all()


def test_rows_are_limited(device):
    with pytest.raises(AssertionError):
        triton_linear.linear(torch.zeros(9, 16, device=device), torch.zeros(16, 16, device=device))


def test_no_rows_are_no_work(device):
    empty = torch.zeros(0, 16, device=device)
    assert triton_linear.linear(empty, torch.zeros(32, 16, device=device)).shape == (0, 32)
