"""Traces without a GPU: what is refused, and how times are added up."""

from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

from fishcli.bench.trace import figures_of, trace_engine
from fishcli.errors import UsageError


def test_a_model_with_too_short_a_context_is_refused(models):
    with pytest.raises(UsageError, match="rows of 1064 positions, the model has 512"):
        trace_engine(models, 1)


def event(name, start, took, device=DeviceType.CUDA):
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: start,
        duration_ns=lambda: took,
        device_type=lambda: device,
    )


def test_kernels_that_overlap_count_once_as_busy_and_late_waits_are_the_profilers():
    events = [
        event("cudaLaunchKernel", 0, 1, DeviceType.CPU),
        event("void gemm<float>(int)", 1000, 4000),
        event("cudaDeviceSynchronize", 2000, 1, DeviceType.CPU),
        event("norm", 3000, 4000),
        event("cudaGraphLaunch", 4000, 1, DeviceType.CPU),
        event("norm", 9000, 1000),
        event("cudaDeviceSynchronize", 9500, 1, DeviceType.CPU),
    ]
    figures = figures_of(events, frames=2)
    assert figures["device_idle"] == pytest.approx(2 / 9)
    assert figures["busy_us_per_frame"] == pytest.approx(3.5)
    assert figures["span_us_per_frame"] == pytest.approx(4.5)
    assert figures["host_waits_per_frame"] == pytest.approx(0.5)
    assert figures["kernels_us"] == {"norm": 2.5, "gemm": 2.0}
