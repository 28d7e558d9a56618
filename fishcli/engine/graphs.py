"""One frame as one CUDA graph replay, for a ladder of batch sizes.

Everything a frame reads and writes has a fixed address, so a frame is captured once for
each range of slots and replayed with a single launch. Ranges are captured largest first
into one memory pool: a smaller graph then fits into what a larger one reserved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

WARM_UP = 2  # eager runs before capture: they compile kernels and make library handles


def ladder(slots: int) -> list[slice]:
    """Ranges from slot 0 to 1, 2, 4, 8, then in steps that waste at most a quarter."""
    steps = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512]
    ends = [step for step in steps if step < slots]
    return [slice(0, end) for end in [*ends, slots]]


def tiles(slots: int, tile: int) -> list[slice]:
    """All ranges of ``tile`` slots; ``slots`` is a multiple of it."""
    assert slots % tile == 0, (slots, tile)
    return [slice(start, start + tile) for start in range(0, slots, tile)]


class FrameGraphs:
    """Captured frames by range of slots."""

    def __init__(
        self, frame: Callable[[slice], None], ranges: Sequence[slice], device: torch.device
    ) -> None:
        self._graphs: dict[int, list[tuple[int, torch.cuda.CUDAGraph]]] = {}
        pool = torch.cuda.graph_pool_handle()
        for rows in sorted(ranges, key=lambda rows: rows.start - rows.stop):
            graph = _capture(frame, rows, pool, device)
            self._graphs.setdefault(rows.start, []).append((rows.stop, graph))
        for graphs in self._graphs.values():
            graphs.sort(key=lambda item: item[0])

    def replay(self, start: int, end: int) -> None:
        """Run the frame of the smallest captured range from ``start`` that reaches ``end``."""
        graph = next(graph for stop, graph in self._graphs[start] if stop >= end)
        graph.replay()


def _capture(
    frame: Callable[[slice], None], rows: slice, pool: Any, device: torch.device
) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            frame(rows)
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads may allocate meanwhile; only this thread's work is captured.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        frame(rows)
    return graph
