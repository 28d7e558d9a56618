"""Continuous batching: rows in, finished codes out.

The loop reads as one sentence: fill free slots, prefill what entered, run a few frames,
look at the stops of a little while ago, hand over what has ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fishcli.engine.runner import ModelRunner
from fishcli.engine.scheduler import Running, Scheduler
from fishcli.engine.slots import OUT_OF_BUDGET, RUNNING, Snapshot
from fishcli.records import FinishedCodes, FinishReason, Request


class RequestSource(Protocol):
    """Where the engine takes its rows from."""

    def take(self, *, wait: bool) -> Request | None:
        """The next row. None: there is none now (never with ``wait``, unless at the end)."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether no row will ever come again."""
        ...


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """``look_every`` frames are queued between two looks at the stops, and a look is
    ``lag`` looks old when it is read, so that the device always has work queued.
    Ended rows are handed over together every ``hand_over_every`` frames."""

    slots: int
    capacity: int  # positions a slot: prompt + budget of the longest row
    look_every: int = 1
    lag: int = 0
    hand_over_every: int = 16
    isolated: bool = False

    @classmethod
    def for_device(
        cls, device: torch.device, slots: int, capacity: int, *, isolated: bool = False
    ) -> EngineSettings:
        """A GPU runs behind the host and is looked at with a lag; a CPU is the host."""
        if device.type == "cuda":
            return cls(slots, capacity, 4, 1, 8, isolated=isolated)
        return cls(slots, capacity, isolated=isolated)


@dataclass(slots=True)
class EngineStats:
    """Counts of one run; the pipeline reads them for its report."""

    frames: int = 0  # frames of the whole batch
    slot_frames: int = 0  # rows in slots, summed over those frames
    prefill_rows: int = 0
    prefill_columns: int = 0
    prefill_s: float = 0.0  # on a GPU: the time to queue it

    def occupancy(self, slots: int) -> float:
        """Mean share of slots that held a row."""
        return self.slot_frames / (self.frames * slots) if self.frames else 0.0


class Engine:
    """Generates the rows of a source, many at a time."""

    def __init__(self, runner: ModelRunner, settings: EngineSettings) -> None:
        self.settings = settings
        self.stats = EngineStats()
        self._runner = runner
        self._scheduler = Scheduler(settings.slots, isolated=settings.isolated)

    @property
    def active(self) -> int:
        """Rows in slots."""
        return len(self._scheduler.running)

    def generate(self, source: RequestSource) -> Iterator[list[FinishedCodes]]:
        """Yield groups of finished rows until ``source`` is exhausted.

        Which rows enter together, and which end in one group, follows from the order of
        the source alone and never from timing, so a run repeats bit for bit. A group is
        also yielded, empty, whenever nothing has ended for a while: the caller's chance
        to look around, and to close the generator.
        """
        snapshots: deque[tuple[Snapshot, dict[int, Running]]] = deque()
        finished: list[FinishedCodes] = []
        frames_since = 0
        while True:
            self._admit(source)
            if not self._scheduler.running:
                break
            for _ in range(self.settings.look_every):
                self._frame()
            # Only rows that were in their slots at that moment may be judged by the snapshot.
            snapshots.append((self._runner.snapshot(), dict(self._scheduler.running)))
            while len(snapshots) > self.settings.lag:
                finished += self._retire(*snapshots.popleft())
            frames_since += self.settings.look_every
            if frames_since >= self.settings.hand_over_every or not self._scheduler.running:
                yield finished
                finished, frames_since = [], 0
        if finished:
            yield finished

    def _admit(self, source: RequestSource) -> None:
        entered: list[Running] = []
        while self._scheduler.has_room and not source.exhausted:
            request = source.take(wait=not self._scheduler.running)
            if request is None:
                break
            row = self._scheduler.place(request, time.perf_counter())
            assert row.limit <= self.settings.capacity, (row.limit, self.settings.capacity)
            entered.append(row)
        started = time.perf_counter()
        for group in self._scheduler.prefill_groups(entered):
            requests = [row.request for row in group]
            self._runner.prefill([row.slot for row in group], requests)
            self.stats.prefill_columns += sum(request.prompt.shape[1] for request in requests)
        self.stats.prefill_rows += len(entered)
        self.stats.prefill_s += time.perf_counter() - started

    def _frame(self) -> None:
        for stretch in self._scheduler.frame():
            self._runner.frame(stretch)
        self.stats.frames += 1
        self.stats.slot_frames += len(self._scheduler.running)

    def _retire(self, snapshot: Snapshot, rows: dict[int, Running]) -> list[FinishedCodes]:
        """Release the slots whose rows had ended at the moment of ``snapshot``."""
        frames, outcomes = snapshot.read()
        finished = []
        for slot, row in rows.items():
            if outcomes[slot] == RUNNING or self._scheduler.running.get(slot) is not row:
                continue
            reason: FinishReason = "length" if outcomes[slot] == OUT_OF_BUDGET else "stop"
            codes = self._runner.codes(slot, frames[slot])
            finished.append(_finished(self._scheduler.release(slot), codes, reason))
        return finished


class ListSource:
    """Rows that are all there from the start."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = deque(requests)

    def take(self, *, wait: bool) -> Request | None:
        return self._requests.popleft() if self._requests else None

    @property
    def exhausted(self) -> bool:
        return not self._requests


def _finished(row: Running, codes: Tensor, reason: FinishReason) -> FinishedCodes:
    return FinishedCodes(
        id=row.request.id,
        codes=codes,
        finish_reason=reason,
        prompt_length=row.request.prompt.shape[1],
        started=row.started,
        finished=time.perf_counter(),
    )
