"""The parts alone: the memory's ceiling, one frame of the engine, the codec."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from fishcli.engine import BLOCK_SIZE, ModelRunner
from fishcli.engine.runner import Columns
from fishcli.engine.scheduler import Stretch
from fishcli.estimate import FRAME_RATE
from fishcli.pipeline.models import Models
from fishcli.records import Request, Sampling

CONTEXT = 300  # positions a row has cached when its frame is timed
TIMED_FRAMES = 24
REPEATS = 5


def _sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Median seconds of ``work`` after one warm-up call, the device's queue emptied around it."""
    work()
    seconds = []
    for _ in range(repeats):
        _sync(device)
        started = time.perf_counter()
        work()
        _sync(device)
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def read_bandwidth(device: torch.device) -> float:
    """TB/s at which a sum reads a buffer far larger than any cache."""
    size = 4 * 2**30 if device.type == "cuda" else 256 * 2**20
    buffer = torch.ones(size // 4, device=device)
    return size / timed(buffer.sum, device) / 1e12


def bytes_per_frame(models: Models) -> int:
    """Weights that one frame must read at batch 1: the slow layers and the rows of the head
    that can be sampled, then the fast AR once for every codebook after the first."""
    config = models.ar.config
    slow = sum(tensor.numel() for tensor in models.ar.slow.layers.parameters())
    head = (config.codebook_size + 1) * config.slow.dim
    fast = sum(tensor.numel() for tensor in models.ar.fast.layers.parameters())
    fast += models.ar.fast.output.weight.numel()
    return (slow + head + (config.num_codebooks - 1) * fast) * models.dtype.itemsize


def frame_and_prefill(models: Models, slots: int) -> dict[str, float]:
    """Milliseconds of one whole frame at full batch, and of one prefill of a full batch.

    Rows have about CONTEXT positions of their own (fewer if the model's context is short).
    """
    config = models.ar.config
    context = min(CONTEXT, config.slow.max_seq_len - TIMED_FRAMES * (REPEATS + 2))
    capacity = context + TIMED_FRAMES * (REPEATS + 1)
    row_blocks = -(-capacity // BLOCK_SIZE)
    runner = ModelRunner(models.ar, slots, capacity, slots * row_blocks)
    tables = [
        list(range(1 + slot * row_blocks, 1 + (slot + 1) * row_blocks)) for slot in range(slots)
    ]
    runner.set_table(tables)
    if models.device.type == "cuda":
        runner.capture([slice(0, slots)])
    prompt = torch.zeros(1 + config.num_codebooks, context, dtype=torch.int32)
    prompt[0] = torch.arange(context) % min(config.semantic_start, config.im_end)
    requests = [
        Request(str(slot), prompt, Sampling(), slot, capacity - context, ignore_stop=True)
        for slot in range(slots)
    ]
    group = max(1, 8192 // context)
    length = context

    def prefill() -> None:
        for first in range(0, slots, group):
            part = list(range(first, min(first + group, slots)))
            hidden = runner.read([Columns(prompt, tables[slot]) for slot in part], 0)
            runner.enter(part, [requests[slot] for slot in part], hidden)

    def frames() -> None:
        nonlocal length
        for _ in range(TIMED_FRAMES):
            length += 1
            runner.frame(Stretch(0, slots, length, Sampling().top_k))

    prefill_s = timed(prefill, models.device)
    frame_s = timed(frames, models.device) / TIMED_FRAMES
    return {
        "frame_ms": 1000 * frame_s,
        "ar_rtf": frame_s * FRAME_RATE,
        "context_tokens": float(context + TIMED_FRAMES * (REPEATS + 1) // 2),
        "prefill_ms": 1000 * prefill_s,
    }


def codec_figures(models: Models) -> dict[str, Any]:
    """The codec alone: decoding and encoding batches of 10-second rows, and a first chunk."""
    codec, device = models.codec, models.device
    rows = 8 if device.type == "cuda" else 2
    frames = round(10 * FRAME_RATE)
    seconds = rows * frames / FRAME_RATE
    smallest = min(codec.codebook_sizes)
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(smallest, (rows, codec.num_codebooks, frames), generator=generator)
    codes = codes.to(device)
    audio = codec.decode(codes)
    figures = {
        "decode_audio_s_per_s": seconds / timed(lambda: codec.decode(codes), device),
        "encode_fp32_audio_s_per_s": seconds / timed(lambda: codec.encode(audio), device),
        "first_chunk_ms": 1000 * timed(lambda: codec.decode(codes[:1, :, :4]), device),
        "rows": rows,
    }
    if device.type == "cuda":
        figures["peak_memory_gb"] = torch.cuda.max_memory_reserved(device) / 1e9
    return figures
