"""What each optimisation of the AR engine is worth.

Rows that compare what a device does not have (captured graphs, Triton kernels) are absent.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fishcli.bench.ablate import Ablation, Figures, Measure, compare
from fishcli.bench.batch import Batch, prompt_grid, timed
from fishcli.engine import BLOCK_SIZE, ModelRunner
from fishcli.engine.prompts import Columns
from fishcli.kernels.ops import PLAIN, without_attention_kernel
from fishcli.model import DualAR
from fishcli.pipeline.models import Models

BATCHES = (1, 64)  # at which a frame is compared
# A voice's prompt: ten seconds of reference with its transcript, then a text.
VOICE_ROWS, SHARED, OWN = 8, 10 * BLOCK_SIZE, 2 * BLOCK_SIZE


def engine_ablations(models: Models) -> Iterator[Ablation]:
    """Every comparison that the device of ``models`` allows, as it is measured."""
    if models.device.type == "cuda":
        for slots in BATCHES:
            yield from _frames(models.ar, slots)
        yield _prompts(models.ar)
    yield _prefix(models.ar)


def _frames(ar: DualAR, slots: int) -> Iterator[Ablation]:
    """One frame in steady state."""
    measured = f"a frame at batch {slots}"
    best = Batch(ar, slots)
    eager = Batch(ar, slots, cuda_graph=False)
    yield compare("captured frames (CUDA graph)", measured, _frame(eager), _frame(best))
    del eager
    hidden = torch.zeros(slots, ar.config.slow.dim, dtype=ar.slow.head.dtype, device=best.device)

    def round_trip() -> Figures:
        # The slots' own state stays where it is; a tensor of its size makes the same way.
        return {"frame_ms": 1000 * best.frame_s(lambda: hidden.copy_(hidden.cpu()))}

    yield compare("hidden state kept on the device", measured, round_trip, _frame(best))
    ops = ar.slow.ops
    if ops.paged_decode_attention is not PLAIN.paged_decode_attention:
        plain_attention = Batch(ar.with_ops(without_attention_kernel(ops)), slots)
        yield compare("attention kernel", measured, _frame(plain_attention), _frame(best))
        del plain_attention
    if ops is not PLAIN:
        plain = Batch(ar.with_ops(PLAIN), slots)
        yield compare("all fused kernels, captured both", measured, _frame(plain), _frame(best))


def _frame(batch: Batch) -> Measure:
    return lambda: {"frame_ms": 1000 * batch.frame_s()}


def _prompts(ar: DualAR) -> Ablation:
    captured, launched = Batch(ar, 1), Batch(ar, 1, cuda_graph=False)

    def reading(batch: Batch) -> Measure:
        return lambda: {"prefill_ms": 1000 * timed(batch.prefill, batch.device)}

    measured = f"one prompt of {captured.prompt_length} columns"
    return compare("captured prompt reading", measured, reading(launched), reading(captured))


def _prefix(ar: DualAR) -> Ablation:
    voice = _Voice(ar)
    return compare(
        "prefix shared by rows of a voice",
        f"{VOICE_ROWS} prompts, {SHARED} columns shared and {OWN} their own",
        lambda: {"prefill_ms": 1000 * timed(voice.read_whole, voice.device)},
        lambda: {"prefill_ms": 1000 * timed(voice.read_shared, voice.device)},
    )


class _Voice:
    """Rows of one voice, whose prompts are read row by row or with their prefix once."""

    def __init__(self, ar: DualAR) -> None:
        shared, own = SHARED // BLOCK_SIZE, OWN // BLOCK_SIZE
        total = shared + own
        self._runner = ModelRunner(ar, VOICE_ROWS, SHARED + OWN, VOICE_ROWS * total)
        self.device = self._runner.device
        if self.device.type == "cuda":
            self._runner.capture([])  # prompts only
        self._grid = prompt_grid(ar.config, SHARED + OWN)
        self._tables = [
            list(range(first, first + total)) for first in range(1, VOICE_ROWS * total, total)
        ]
        self._prefix = self._tables[0][:shared]

    def read_whole(self) -> None:
        """All columns of every row."""
        self._runner.read([Columns(self._grid, table, 0) for table in self._tables])

    def read_shared(self) -> None:
        """The prefix, then every row's own columns behind it."""
        self._runner.read([Columns(self._grid[:, :SHARED], self._prefix, 0)])
        own = self._grid[:, SHARED:]
        tables = [self._prefix + table[len(self._prefix) :] for table in self._tables]
        self._runner.read([Columns(own, table, SHARED) for table in tables])
