"""Norms and SwiGLU against their twins in float64 or, for the roundings, in the same dtype."""

import pytest
import torch

from fishcli.kernels import reference, triton_norm
from tests.kernels.judge import assert_close

EPS = 1e-6
SIZES = [(1, 96), (3, 2560), (5, 128), (2, 1), (4, 1000)]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])


def numbers(*shape, dtype, device, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(device, dtype)


@DTYPES
@pytest.mark.parametrize(("rows", "dim"), SIZES)
def test_rms_norm_agrees_with_its_twin(device, rows, dim, dtype):
    x = numbers(rows, dim, dtype=dtype, device=device, scale=3.0)
    weight = numbers(dim, dtype=dtype, device=device, seed=1)
    actual = triton_norm.rms_norm(x, weight, EPS)
    assert_close(actual, reference.rms_norm, x, weight, EPS)


@DTYPES
@pytest.mark.parametrize(("rows", "dim"), SIZES)
def test_add_rms_norm_rounds_the_sum_before_it_norms_it(device, rows, dim, dtype):
    x = numbers(rows, dim, dtype=dtype, device=device)
    delta = numbers(rows, dim, dtype=dtype, device=device, seed=2, scale=0.1)
    weight = numbers(dim, dtype=dtype, device=device, seed=1)
    normed, total = triton_norm.add_rms_norm(x, delta, weight, EPS)
    if total.is_cuda or dtype == torch.float32:  # the interpreter cuts, the GPU rounds
        assert torch.equal(total, x + delta)
    assert_close(total, torch.add, x, delta)
    assert_close(normed, reference.rms_norm, total, weight, EPS)


@DTYPES
@pytest.mark.parametrize(("rows", "mlp"), [(1, 256), (3, 1024), (2, 1040), (1, 9728), (2, 7)])
def test_swiglu_agrees_with_its_twin(device, rows, mlp, dtype):
    gate_up = numbers(rows, 2 * mlp, dtype=dtype, device=device, scale=4.0)
    assert_close(triton_norm.swiglu_stacked(gate_up), reference.swiglu_stacked, gate_up)


def test_large_negative_gates_give_zero_and_large_ones_pass(device):
    gate_up = torch.tensor([[-200.0, -1e4, 200.0, 1e4, 3.0, 3.0, 3.0, 3.0]], device=device)
    assert triton_norm.swiglu_stacked(gate_up).tolist() == [[0.0, 0.0, 600.0, 3e4]]


def test_a_row_of_zeros_stays_zero(device):
    x = torch.zeros(2, 96, device=device)
    assert not triton_norm.rms_norm(x, torch.ones(96, device=device), EPS).any()


def test_a_row_is_the_same_in_any_company(device):
    x = numbers(6, 2560, dtype=torch.bfloat16, device=device)
    weight = numbers(2560, dtype=torch.bfloat16, device=device, seed=1)
    together = triton_norm.rms_norm(x, weight, EPS)
    for row in (0, 5):
        assert torch.equal(triton_norm.rms_norm(x[row : row + 1], weight, EPS)[0], together[row])


def test_no_rows_are_no_work(device):
    empty = torch.empty(0, 96, device=device)
    weight = torch.ones(96, device=device)
    assert triton_norm.rms_norm(empty, weight, EPS).shape == (0, 96)
    assert triton_norm.swiglu_stacked(empty).shape == (0, 48)


def test_views_that_are_not_contiguous_are_refused(device):
    x = torch.zeros(4, 192, device=device)[:, ::2]
    with pytest.raises(AssertionError):
        triton_norm.rms_norm(x, torch.ones(96, device=device), EPS)
