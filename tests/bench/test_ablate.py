"""Comparing the same work without and with an optimisation."""

from dataclasses import replace

import pytest
import torch

from fishcli.bench import ablate_engine, batch
from fishcli.bench.ablate import alternate, compare
from fishcli.checkpoint import resolve
from fishcli.kernels.ops import PLAIN, choose_ops
from fishcli.pipeline.models import load_models

FRAME = [
    "captured frames (CUDA graph)",
    "hidden state kept on the device",
    "attention kernel",
    "all fused kernels, captured both",
]


def test_off_and_on_take_turns_after_a_warm_up_and_medians_count():
    calls = []
    values = {"off": iter([9.0, 5.0, 1.0, 3.0]), "on": iter([9.0, 2.0, 8.0, 4.0])}

    def measure(side):
        calls.append(side)
        return {"frame_ms": next(values[side])}

    off, on = alternate(lambda: measure("off"), lambda: measure("on"), repeats=3)
    assert calls == ["off", "on"] * 4
    assert (off, on) == ({"frame_ms": 3.0}, {"frame_ms": 4.0})


def test_every_figure_has_its_own_median():
    rows = iter([(0, 0), (1, 30), (2, 10), (3, 20)])

    def measure():
        first, second = next(rows)
        return {"first_ms": first, "second_ms": second}

    constant = {"first_ms": 1, "second_ms": 1}
    found = compare("name", "work", measure, lambda: constant, repeats=3)
    assert (found.off, found.on) == ({"first_ms": 2, "second_ms": 20}, constant)


def test_a_cpu_compares_what_it_has_and_nothing_else(bench):
    """Graphs and Triton kernels are absent, not zero."""
    ablations = bench.document["ablations"]
    assert [line["name"] for line in ablations] == [
        "prefix shared by rows of a voice",
        "codec decoding in batches",
        "codes handed over as device tensors, not lists",
        "condition variable instead of polling",
    ]
    for line in ablations:
        assert line["off"].keys() == line["on"].keys()
        assert all(value > 0 for value in [*line["off"].values(), *line["on"].values()])


def test_what_is_many_times_cheaper_is_seen_to_be(bench):
    """Only factors of ten and more, in processor time where there is any: machines are busy."""
    by_name = {line["name"].split()[0]: line for line in bench.document["ablations"]}
    for name, figure in (("codes", "handover_ms"), ("condition", "idle_cpu_ms_per_s")):
        line = by_name[name]
        assert line["on"][figure] < line["off"][figure], line


def test_a_frame_is_compared_with_the_ops_that_are_left(models, monkeypatch):
    """The comparisons of a GPU, walked through with stand-ins for its kernels."""
    monkeypatch.setattr(batch, "TIMED_FRAMES", 1)
    attended = []

    def attention(q, kv, positions, workspace):
        attended.append(positions)
        return PLAIN.paged_decode_attention(q, kv, positions, workspace)

    ar = models.ar.with_ops(replace(PLAIN, name="other", paged_decode_attention=attention))
    counts = []
    for line, name in zip(ablate_engine._frames(ar, 2), FRAME, strict=True):
        assert line.name == name
        counts.append(len(attended))
        attended.clear()
    both = counts[0]
    assert counts == [both, both, both // 2, both // 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_compares_everything():
    device = torch.device("cuda", 0)
    models = load_models(resolve("mini", device), device, choose_ops(device).ops)
    lines = list(ablate_engine.engine_ablations(models))
    assert [line.name for line in lines] == [
        *FRAME * len(ablate_engine.BATCHES),
        "captured prompt reading",
        "prefix shared by rows of a voice",
    ]
    captured = lines[0]
    assert captured.on["frame_ms"] < captured.off["frame_ms"]
