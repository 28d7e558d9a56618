"""Captured work: a frame, or the reading of prompts, as one CUDA graph replay.

Everything a frame reads and writes has a fixed address, so a frame is captured once for
each range of slots and replayed with a single launch. Ranges are captured largest first
into one memory pool: a smaller graph then fits into what a larger one reserved.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from fishcli.engine.prompts import PromptBatch

# Shapes of captured prompt reading: rows, columns, and the most columns in all; beyond that
# the device is busy long enough for launches one by one.
PREFILL_ROWS = (1, 2, 4, 8, 16)
PREFILL_WIDTHS = (32, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1024)
PREFILL_LIMIT = 4096
WARM_UP = 2  # eager runs before capture: they compile kernels and make library handles


def ladder(slots: int) -> list[slice]:
    """Ranges from slot 0 to 1, 2, 4 … and ``slots``, in proportion closer for large batches."""
    steps = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512]
    ends = [step for step in steps if step < slots]
    return [slice(0, end) for end in [*ends, slots]]


def tiles(slots: int, tile: int) -> list[slice]:
    """All ranges of ``tile`` slots; ``slots`` is a multiple of it."""
    assert slots % tile == 0, (slots, tile)
    return [slice(start, start + tile) for start in range(0, slots, tile)]


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside: freeing another graph would break a capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class GraphPool:
    """Captures work into CUDA graphs that share one memory pool.

    Such graphs must not run at the same time; one thread replays them on one stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Run ``work`` a few times, then capture it."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                work()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate meanwhile; only this thread's work is captured.
        with (
            _no_collection(),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            work()
        return graph


class FrameGraphs:
    """Captured frames by range of slots."""

    def __init__(
        self, pool: GraphPool, frame: Callable[[slice], None], ranges: Sequence[slice]
    ) -> None:
        self._graphs: dict[int, list[tuple[int, torch.cuda.CUDAGraph]]] = {}
        for rows in sorted(ranges, key=lambda rows: rows.start - rows.stop):
            graph = pool.capture(partial(frame, rows))
            self._graphs.setdefault(rows.start, []).append((rows.stop, graph))
        for graphs in self._graphs.values():
            graphs.sort(key=lambda item: item[0])

    def replay(self, start: int, end: int) -> None:
        """Run the frame of the smallest captured range from ``start`` that reaches ``end``."""
        graph = next(graph for stop, graph in self._graphs[start] if stop >= end)
        graph.replay()


class PrefillGraphs:
    """Captured prompt reading by (rows, columns); captured when first needed.

    ``read``: a batch → the hidden state of each row's last new column, (rows, dim).
    """

    def __init__(self, pool: GraphPool, read: Callable[[PromptBatch], Tensor]) -> None:
        self._pool = pool
        self._read = read
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, PromptBatch, Tensor]] = {}

    @staticmethod
    def shape(rows: int, columns: int) -> tuple[int, int] | None:
        """The captured shape that holds a batch, or None for one too large to be worth it."""
        height = next((step for step in PREFILL_ROWS if step >= rows), None)
        width = next((step for step in PREFILL_WIDTHS if step >= columns), None)
        if height is None or width is None or height * width > PREFILL_LIMIT:
            return None
        return height, width

    def replay(self, batch: PromptBatch) -> Tensor:
        """Read a batch of a captured shape; the result is overwritten by the next replay."""
        shape = batch.grids.shape[0], batch.grids.shape[1]
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(batch)
        graph, static, hidden = self._graphs[shape]
        static.copy_(batch)
        graph.replay()
        return hidden

    def _capture(self, batch: PromptBatch) -> tuple[torch.cuda.CUDAGraph, PromptBatch, Tensor]:
        static = batch.like()
        static.copy_(batch)
        results: list[Tensor] = []
        graph = self._pool.capture(lambda: results.append(self._read(static)))
        return graph, static, results[-1]
