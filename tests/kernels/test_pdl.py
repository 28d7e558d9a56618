"""Programmatic dependent launch changes when kernels start, not what they compute."""

import pytest
import torch

from fishcli.kernels import triton_linear, triton_norm, triton_pdl, triton_sampling
from fishcli.kernels.sampling import SamplingState

DIM, MLP, LAYERS, REPLAYS = 1024, 3072, 6, 20


def test_it_is_off_where_there_is_no_gpu():
    assert triton_pdl.launch_options(torch.zeros(1)) == {"PDL": False}


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_graph_of_dependent_launches_gives_the_same_bits_without_it(rows, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("graphs need a GPU")
    torch.manual_seed(0)
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [
        (torch.randn(2 * MLP, DIM, **kind) * DIM**-0.5, torch.randn(DIM, MLP, **kind) * MLP**-0.5)
        for _ in range(LAYERS)
    ]
    norm = torch.ones(DIM, **kind)
    full = torch.full((rows,), 0.8, device="cuda")
    sampling = SamplingState(full, full, torch.full((rows,), 30, device="cuda"), 30)
    key = torch.arange(rows, device="cuda")
    start = torch.empty(rows, DIM, **kind)

    def chain():
        x = start
        for gate_up, down in layers:
            wide = triton_linear.norm_swiglu_linear(x, norm, 1e-6, gate_up)
            x = triton_linear.linear_add(wide, down, x)
        x = triton_norm.rms_norm(x, norm, 1e-6)
        return x, triton_sampling.sample_residual(x, sampling, key, key, 1)

    starts = [torch.randn(rows, DIM, **kind) for _ in range(REPLAYS)]
    with monkeypatch.context() as patch:
        patch.setattr(triton_pdl, "PDL", False)
        expected = []
        for values in starts:
            start.copy_(values)
            expected.append(chain())
    chain()  # compiles before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain()
    for values, (hidden, drawn) in zip(starts, expected, strict=True):
        start.copy_(values)
        graph.replay()
        graph.replay()  # the second must not begin before the first has ended
        assert torch.equal(out[0], hidden)
        assert torch.equal(out[1], drawn)
