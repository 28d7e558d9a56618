"""A full batch of rows of the engine's runner, to be read and continued at will."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from fishcli.engine import BLOCK_SIZE, ModelRunner
from fishcli.engine.prompts import Columns
from fishcli.engine.scheduler import Stretch, prefill_groups
from fishcli.model import DualAR, ModelConfig
from fishcli.records import Request, Sampling

CONTEXT = 300  # positions a row has cached when its frame is timed
TIMED_FRAMES = 16
REPEATS = 5


def sync(device: torch.device) -> None:
    """Wait until the device's queue is empty."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that ``work`` takes, the device's queue emptied around it."""
    sync(device)
    started = time.perf_counter()
    work()
    sync(device)
    return time.perf_counter() - started


def median_s(work: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Median seconds of ``work`` after one warm-up call."""
    work()
    return median(timed(work, device) for _ in range(repeats))


def prompt_grid(config: ModelConfig, columns: int) -> torch.Tensor:
    """A prompt of text alone, (1 + codebooks, columns) int32."""
    grid = torch.zeros(1 + config.num_codebooks, columns, dtype=torch.int32)
    grid[0] = torch.arange(columns) % min(config.semantic_start, config.im_end)
    return grid


class Batch:
    """``slots`` rows with prompts of one length and room for TIMED_FRAMES frames.

    By default the timed frames lie around CONTEXT positions (fewer where the model's context
    is short).
    """

    def __init__(
        self,
        ar: DualAR,
        slots: int,
        *,
        cuda_graph: bool = True,
        prompt_length: int = CONTEXT - TIMED_FRAMES // 2,
    ) -> None:
        self.slots = slots
        self.prompt_length = min(prompt_length, ar.config.slow.max_seq_len - TIMED_FRAMES)
        positions = self.prompt_length + TIMED_FRAMES
        row_blocks = -(-positions // BLOCK_SIZE)
        self._runner = ModelRunner(ar, slots, row_blocks * BLOCK_SIZE, slots * row_blocks)
        self.device = self._runner.device
        firsts = range(1, 1 + slots * row_blocks, row_blocks)
        self._tables = [list(range(first, first + row_blocks)) for first in firsts]
        self._runner.set_table(self._tables)
        if self.device.type == "cuda" and cuda_graph:
            self._runner.capture([slice(0, slots)])
        self._prompt = prompt_grid(ar.config, self.prompt_length)

    @property
    def context(self) -> float:
        """Mean positions a row has cached while its frames are timed."""
        return self.prompt_length + TIMED_FRAMES / 2

    def prefill(self) -> None:
        """Read every row's prompt, in groups as the engine would, and start the rows anew."""
        for slots in prefill_groups([self.prompt_length] * self.slots, isolated=False):
            items = [Columns(self._prompt, self._tables[slot], 0) for slot in slots]
            requests = [
                Request(str(slot), self._prompt, Sampling(), slot, TIMED_FRAMES, ignore_stop=True)
                for slot in slots
            ]
            self._runner.enter(slots, requests, self._runner.read(items))

    def frames(self, after: Callable[[], object] = lambda: None) -> None:
        """TIMED_FRAMES frames of every row, ``after`` called behind each."""
        for frame in range(TIMED_FRAMES):
            length = self.prompt_length + frame + 1
            self._runner.frame(Stretch(0, self.slots, length, Sampling().top_k))
            after()

    def frame_s(self, after: Callable[[], object] = lambda: None) -> float:
        """Seconds of one frame; the rows begin anew, so every call sees the same contexts."""
        self.prefill()
        return timed(lambda: self.frames(after), self.device) / TIMED_FRAMES
