"""The parts alone: the memory's ceiling, one frame of the engine, the codec."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from fishcli.engine import BLOCK_SIZE, ModelRunner, bytes_per_token
from fishcli.engine.prompts import Columns
from fishcli.engine.scheduler import PREFILL_COLUMNS, Stretch
from fishcli.estimate import FRAME_RATE
from fishcli.pipeline.models import Models
from fishcli.records import Request, Sampling

CONTEXT = 300  # positions a row has cached when its frame is timed
TIMED_FRAMES = 16
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


def frame_figures(models: Models, slots: int, *, cuda_graph: bool = True) -> dict[str, float]:
    """One whole frame at full batch, and one prefill of the whole batch, in milliseconds.

    Rows have about CONTEXT positions of their own (fewer where the model's context is
    short). ``achieved_tb_s`` counts the weights and cached positions a frame must read once.
    """
    config = models.ar.config
    timed_positions = TIMED_FRAMES * (REPEATS + 1)
    prompt_length = CONTEXT - timed_positions // 2
    if prompt_length + timed_positions > config.slow.max_seq_len:
        prompt_length = config.slow.max_seq_len - timed_positions
    batch = _Batch(models, slots, prompt_length, timed_positions, cuda_graph=cuda_graph)
    prefill_s = timed(batch.prefill, models.device)
    frame_s = timed(batch.frames, models.device) / TIMED_FRAMES
    context = prompt_length + timed_positions / 2
    kv_bytes = slots * context * bytes_per_token(config.slow, models.dtype)
    read = bytes_per_frame(models) + kv_bytes
    return {
        "frame_ms": 1000 * frame_s,
        "ar_rtf": frame_s * FRAME_RATE,
        "context_tokens": context,
        "frame_bytes": read,
        "achieved_tb_s": read / frame_s / 1e12,
        "prefill_ms": 1000 * prefill_s,
        "prefill_columns": float(slots * prompt_length),
    }


class _Batch:
    """A full batch of rows with a prompt each, to be read and continued."""

    def __init__(
        self, models: Models, slots: int, prompt_length: int, frames: int, *, cuda_graph: bool
    ) -> None:
        config = models.ar.config
        row_blocks = -(-(prompt_length + frames) // BLOCK_SIZE)
        capacity = row_blocks * BLOCK_SIZE
        self._runner = ModelRunner(models.ar, slots, capacity, slots * row_blocks)
        firsts = range(1, 1 + slots * row_blocks, row_blocks)
        self._tables = [list(range(first, first + row_blocks)) for first in firsts]
        self._runner.set_table(self._tables)
        if models.device.type == "cuda" and cuda_graph:
            self._runner.capture([slice(0, slots)])
        self._prompt = torch.zeros(1 + config.num_codebooks, prompt_length, dtype=torch.int32)
        self._prompt[0] = torch.arange(prompt_length) % min(config.semantic_start, config.im_end)
        self._slots = slots
        self._frames = frames
        self._length = prompt_length

    def prefill(self) -> None:
        """Read every row's prompt, in groups as the engine would."""
        group = max(1, PREFILL_COLUMNS // self._prompt.shape[1])
        for first in range(0, self._slots, group):
            slots = list(range(first, min(first + group, self._slots)))
            items = [Columns(self._prompt, self._tables[slot], 0) for slot in slots]
            requests = [
                Request(str(slot), self._prompt, Sampling(), slot, self._frames, ignore_stop=True)
                for slot in slots
            ]
            self._runner.enter(slots, requests, self._runner.read(items))

    def frames(self) -> None:
        """TIMED_FRAMES more frames of every row."""
        for _ in range(TIMED_FRAMES):
            self._length += 1
            self._runner.frame(Stretch(0, self._slots, self._length, Sampling().top_k))


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
