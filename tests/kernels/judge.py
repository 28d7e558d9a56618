"""How the tests of kernels measure error."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

FLOAT32_ERROR = 2e-6  # of the norm of the result, and of its largest value for the worst element
# Of the twin's own bfloat16 error: a kernel sums in another order, so a few roundings fall
# otherwise.
BFLOAT16_SHARE = 1.5
# Triton's interpreter cuts a number off where the GPU rounds it, by up to 2 ** -7 each time;
# five times in the longest chains tested. What the kernel computes is judged in float32.
CUT_ERROR = 0.03, 5 * 2.0**-7


def assert_close(actual: Tensor, twin: Callable[..., Tensor], *inputs: object) -> None:
    """``actual`` against ``twin`` in float64 on the same inputs.

    In float32 the error must be below FLOAT32_ERROR; in bfloat16 below
    BFLOAT16_SHARE times the error that the twin itself makes in bfloat16 (CUT_ERROR under the
    interpreter).
    """
    exact = twin(*[x.double() if isinstance(x, Tensor) else x for x in inputs])
    assert actual.shape == exact.shape
    size, peak = errors(actual, exact)
    if actual.dtype == torch.float32:
        allowed = FLOAT32_ERROR, FLOAT32_ERROR
    elif actual.is_cuda:
        plain = errors(twin(*inputs), exact)
        allowed = BFLOAT16_SHARE * plain[0] + 1e-7, BFLOAT16_SHARE * plain[1] + 1e-7
    else:
        allowed = CUT_ERROR
    assert size <= allowed[0], (size, allowed)
    assert peak <= allowed[1], (peak, allowed)


def errors(actual: Tensor, exact: Tensor) -> tuple[float, float]:
    """(‖actual - exact‖ / ‖exact‖, largest error / largest exact value); NaN stays NaN."""
    difference = actual.double() - exact
    size = difference.norm() / exact.norm()
    return float(size), float(difference.abs().max() / exact.abs().max())
