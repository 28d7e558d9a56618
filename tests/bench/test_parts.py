"""The parts alone, on the smallest model."""

import math

import pytest

from fishcli.bench.batch import CONTEXT, TIMED_FRAMES, Batch
from fishcli.bench.parts import bytes_per_frame, codec_figures, frame_figures
from fishcli.engine import ModelRunner
from fishcli.estimate import FRAME_RATE


def test_bytes_of_a_frame_are_those_counted_by_hand(models):
    """The toy: width 96, 4 heads and 2 KV heads of 32, float32."""
    attention = 96 * (4 + 2 * 2) * 32 + 4 * 32 * 96
    slow_layer = attention + 3 * 96 * 192 + 2 * 96 + 2 * 32  # and norms, those of q and k too
    fast_layer = attention + 3 * 96 * 160 + 2 * 96
    head = (256 + 1) * 96  # what can be sampled: semantic codes and the stop
    fast = 2 * fast_layer + 256 * 96
    assert bytes_per_frame(models) == 4 * (3 * slow_layer + head + 9 * fast)


def test_figures_of_a_frame_agree_with_each_other(models):
    figures = frame_figures(models, 2)
    assert all(math.isfinite(value) and value > 0 for value in figures.values())
    assert figures["context_tokens"] == CONTEXT
    assert figures["ar_rtf"] == pytest.approx(figures["frame_ms"] / 1000 * FRAME_RATE)
    kv = 2 * CONTEXT * 2 * 3 * 2 * 32 * 4  # rows · positions · (k, v) · layers · heads · dim · 4
    assert figures["frame_bytes"] == bytes_per_frame(models) + kv
    read_s = figures["frame_bytes"] / (figures["achieved_tb_s"] * 1e12)
    assert read_s == pytest.approx(figures["frame_ms"] / 1000)


def test_every_timing_of_a_frame_sees_the_same_contexts(models, monkeypatch):
    lengths = []
    frame = ModelRunner.frame

    def recorded(runner, stretch):
        lengths.append(stretch.length)
        frame(runner, stretch)

    monkeypatch.setattr(ModelRunner, "frame", recorded)
    batch = Batch(models.ar, 1)
    assert batch.frame_s() > 0
    assert batch.frame_s() > 0
    assert lengths[:TIMED_FRAMES] == lengths[TIMED_FRAMES:]
    assert sum(lengths) / len(lengths) == pytest.approx(CONTEXT, abs=1)


def test_figures_of_the_codec_are_finite(models):
    figures = codec_figures(models)
    assert all(math.isfinite(value) and value > 0 for value in figures.values())
    assert "peak_memory_gb" not in figures  # of a GPU
