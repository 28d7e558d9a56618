"""The parts alone: the memory's ceiling, one frame of the engine, the codec."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch

from fishcli.bench.batch import REPEATS, Batch, median_s
from fishcli.engine import bytes_per_token
from fishcli.estimate import FRAME_RATE
from fishcli.pipeline.models import Models

PROMPT_COLUMNS, PROMPT_ROWS = (64, 300, 700), (1, 8)
# Rows and seconds of each that the codec is timed with: a CPU takes long for more.
CODEC_LOAD = {"cuda": (8, 10.0), "cpu": (2, 3.0)}


def read_bandwidth(device: torch.device) -> float:
    """TB/s at which a sum reads a buffer far larger than any cache."""
    size = 4 * 2**30 if device.type == "cuda" else 256 * 2**20
    buffer = torch.ones(size // 4, device=device)
    return size / median_s(buffer.sum, device) / 1e12


def bytes_per_frame(models: Models) -> int:
    """Weights that one frame must read at batch 1: the slow layers and the rows of the head
    that can be sampled, then the fast AR once for every codebook after the first."""
    config = models.ar.config
    slow = sum(tensor.numel() for tensor in models.ar.slow.layers.parameters())
    head = (config.codebook_size + 1) * config.slow.dim
    fast = sum(tensor.numel() for tensor in models.ar.fast.layers.parameters())
    fast += models.ar.fast.output.weight.numel()
    return (slow + head + (config.num_codebooks - 1) * fast) * models.dtype.itemsize


def frame_figures(models: Models, slots: int, *, cuda_graph: bool = True) -> dict[str, float]:
    """One whole frame at full batch, and one prefill of the whole batch, in milliseconds.

    ``achieved_tb_s`` counts the weights and cached positions a frame must read once.
    """
    batch = Batch(models.ar, slots, cuda_graph=cuda_graph)
    prefill_s = median_s(batch.prefill, models.device)
    batch.frame_s()  # the first frames make kernels
    frame_s = median(batch.frame_s() for _ in range(REPEATS))
    kv_bytes = slots * batch.context * bytes_per_token(models.ar.config.slow, models.dtype)
    read = bytes_per_frame(models) + kv_bytes
    return {
        "frame_ms": 1000 * frame_s,
        "ar_rtf": frame_s * FRAME_RATE,
        "context_tokens": batch.context,
        "frame_bytes": read,
        "achieved_tb_s": read / frame_s / 1e12,
        "prefill_ms": 1000 * prefill_s,
        "prefill_columns": float(slots * batch.prompt_length),
    }


def prefill_figures(models: Models) -> list[dict[str, float]]:
    """Reading prompts of a few lengths: a text alone, and texts after references of about 10
    and 30 seconds. Milliseconds for all rows together."""
    figures = []
    for columns in PROMPT_COLUMNS:
        for rows in PROMPT_ROWS:
            batch = Batch(models.ar, rows, prompt_length=columns)
            milliseconds = 1000 * median_s(batch.prefill, models.device)
            length = batch.prompt_length
            figures.append({"rows": rows, "columns": length, "prefill_ms": milliseconds})
    return figures


def codec_figures(models: Models) -> dict[str, Any]:
    """The codec alone: decoding and encoding whole batches, and a first chunk of four frames."""
    codec, device = models.codec, models.device
    rows, row_s = CODEC_LOAD[device.type]
    frames = round(row_s * FRAME_RATE)
    seconds = rows * frames / FRAME_RATE
    smallest = min(codec.codebook_sizes)
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(smallest, (rows, codec.num_codebooks, frames), generator=generator)
    codes = codes.to(device)
    audio = codec.decode(codes)
    figures = {
        "decode_audio_s_per_s": seconds / median_s(lambda: codec.decode(codes), device),
        "encode_fp32_audio_s_per_s": seconds / median_s(lambda: codec.encode(audio), device),
        "first_chunk_ms": 1000 * median_s(lambda: codec.decode(codes[:1, :, :4]), device),
        "rows": rows,
    }
    if device.type == "cuda":
        figures["peak_memory_gb"] = torch.cuda.max_memory_reserved(device) / 1e9
    return figures
