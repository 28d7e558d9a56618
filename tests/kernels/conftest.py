"""Fused kernels run on the GPU where there is one, else under Triton's interpreter.

Triton reads the variable when a kernel is defined, so it is set before any test of this
folder imports one.
"""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where the kernels run; the interpreter takes the CPU, so one machine runs one of the two."""
    name: str = request.param
    if (name == "cuda") != torch.cuda.is_available():
        pytest.skip("kernels run on the GPU where there is one, else under the interpreter")
    return torch.device(name)


@pytest.fixture(params=[torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
def like(request: pytest.FixtureRequest, device: torch.device) -> torch.Tensor:
    """An empty tensor of the dtype and device under test."""
    if request.param == torch.bfloat16 and device.type == "cpu":
        pytest.skip("the interpreter has no bfloat16 products")
    return torch.empty(0, dtype=request.param, device=device)
