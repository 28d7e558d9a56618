"""Decides which row runs where; holds no tensors.

Slots are filled from the lowest number, so the running ones stay close together and a
frame need not compute the empty end of a batch that drains.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from fishcli.engine.runner import Stretch
from fishcli.records import Request

PREFILL_TOKENS = 8192  # columns, padding counted, that go through one prefill call


@dataclass(slots=True)
class Running:
    """A row in its slot."""

    request: Request
    slot: int
    started: float  # time.perf_counter()
    cached: int  # bound of its cached positions: prompt and frames asked for since

    @property
    def limit(self) -> int:
        """Positions the row can ever use."""
        return self.request.prompt.shape[1] + self.request.max_frames


class Scheduler:
    """Continuous batching over ``slots`` slots.

    With ``isolated`` every row is computed alone, in shapes that depend on nothing but
    the row itself: that is what makes its bits independent of its company.
    """

    def __init__(self, slots: int, *, isolated: bool = False) -> None:
        assert slots >= 1, slots
        self.slots = slots
        self.isolated = isolated
        self._free = list(range(slots))  # a heap: the lowest slot first
        self.running: dict[int, Running] = {}

    @property
    def has_room(self) -> bool:
        """Whether another row can enter."""
        return bool(self._free)

    def place(self, request: Request, now: float) -> Running:
        """Give ``request`` the lowest free slot."""
        slot = heapq.heappop(self._free)
        row = Running(request, slot, now, cached=request.prompt.shape[1])
        self.running[slot] = row
        return row

    def release(self, slot: int) -> Running:
        """The row of ``slot`` has ended: the slot can be refilled."""
        heapq.heappush(self._free, slot)
        return self.running.pop(slot)

    def prefill_groups(self, rows: list[Running]) -> list[list[Running]]:
        """Split new rows into padded batches of similar length, PREFILL_TOKENS at most."""
        if self.isolated:
            return [[row] for row in rows]
        groups: list[list[Running]] = []
        for row in sorted(rows, key=lambda row: (-row.cached, row.slot)):
            widest = groups[-1][0].cached if groups else 0
            if groups and (len(groups[-1]) + 1) * widest <= PREFILL_TOKENS:
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups

    def frame(self) -> list[Stretch]:
        """The stretches of slots to run through the next frame, and count it."""
        rows = [self.running[slot] for slot in sorted(self.running)]
        for row in rows:
            row.cached = min(row.cached + 1, row.limit)
        if self.isolated:
            return [_stretch([row], row.slot) for row in rows]
        return [_stretch(rows, 0)] if rows else []


def _stretch(rows: list[Running], start: int) -> Stretch:
    return Stretch(
        start=start,
        end=rows[-1].slot + 1,
        length=max(row.cached for row in rows),
        candidates=max(row.request.sampling.top_k for row in rows),
    )
