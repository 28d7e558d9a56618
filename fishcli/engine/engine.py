"""Continuous batching: rows in, finished codes out.

The loop reads as one sentence: fill free slots, read the prompts of what entered, run a
few frames, look at the stops of a little while ago, hand over what has ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fishcli.engine.blocks import BlockManager
from fishcli.engine.cache import BLOCK_SIZE
from fishcli.engine.prompts import Columns
from fishcli.engine.runner import ModelRunner, Swapped
from fishcli.engine.scheduler import Batching, Running, Scheduler, prefill_groups
from fishcli.engine.slots import OUT_OF_BUDGET, RUNNING, Snapshot
from fishcli.records import FinishedCodes, FinishReason, Request

LOOK_AROUND_S = 1.0  # longest time without giving the caller a turn, but for one look


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
    capacity: int  # positions of the longest row: prompt + budget
    look_every: int = 1
    lag: int = 0
    hand_over_every: int = 16
    batching: Batching = field(default_factory=Batching)

    @classmethod
    def for_device(
        cls, device: torch.device, slots: int, capacity: int, batching: Batching | None = None
    ) -> EngineSettings:
        """A GPU runs behind the host and is looked at with a lag; a CPU is the host."""
        batching = batching or Batching()
        if device.type == "cuda":
            return cls(slots, capacity, 4, 1, 8, batching)
        return cls(slots, capacity, batching=batching)


@dataclass(slots=True)
class EngineStats:
    """Counts of one run; the pipeline reads them for its report."""

    frames: int = 0  # frames of the whole batch
    slot_frames: int = 0  # rows in slots, summed over those frames
    prefill_rows: int = 0
    prefill_columns: int = 0  # read; those taken from a shared prefix are not
    prefixes: int = 0  # shared prefixes read
    preempted: int = 0  # rows that gave way for a while
    prefill_s: float = 0.0  # on a GPU: the time to queue it

    def occupancy(self, slots: int) -> float:
        """Mean share of slots that held a row."""
        return self.slot_frames / (self.frames * slots) if self.frames else 0.0


class Engine:
    """Generates the rows of a source, many at a time."""

    def __init__(self, runner: ModelRunner, settings: EngineSettings) -> None:
        assert runner.blocks * BLOCK_SIZE >= settings.capacity, "one row alone must fit"
        self.settings = settings
        self.stats = EngineStats()
        self._runner = runner
        self._blocks = BlockManager(runner.blocks, BLOCK_SIZE)
        self._scheduler = Scheduler(settings.slots, self._blocks, settings.batching)
        self._held: Request | None = None  # taken from the source, not yet admitted
        self._swapped: deque[tuple[Running, Swapped]] = deque()

    @property
    def active(self) -> int:
        """Rows in slots."""
        return len(self._scheduler.running)

    @property
    def rows(self) -> list[Running]:
        """The rows in slots."""
        return list(self._scheduler.running.values())

    def generate(self, source: RequestSource) -> Generator[list[FinishedCodes], None, None]:
        """Yield groups of finished rows until ``source`` is exhausted.

        Which rows enter together, and which end in one group, follows from the order of
        the source alone and never from timing, so a run repeats bit for bit. A group is
        also yielded, empty, whenever nothing has ended for a while, and once a second where
        frames are slow: the caller's chance to look around, and to close the generator.
        """
        snapshots: deque[tuple[Snapshot, dict[int, Running]]] = deque()
        finished: list[FinishedCodes] = []
        frames_since = 0
        yielded = time.perf_counter()
        while True:
            self._admit(source)
            if not self._scheduler.running:
                break  # nothing running, swapped or held: the source is exhausted
            self._make_room()
            self._runner.set_table(self._scheduler.tables())
            for _ in range(self.settings.look_every):
                self.run_frame()
            # Only rows that were in their slots at that moment may be judged by the snapshot.
            snapshots.append((self._runner.snapshot(), dict(self._scheduler.running)))
            while len(snapshots) > self.settings.lag:
                finished += self._retire(*snapshots.popleft())
            frames_since += self.settings.look_every
            if frames_since >= self.settings.hand_over_every or not self._scheduler.running:
                yield finished
                finished, frames_since, yielded = [], 0, time.perf_counter()
            elif time.perf_counter() - yielded > LOOK_AROUND_S:
                yield []
                yielded = time.perf_counter()
        if finished:
            yield finished
        self._blocks.check()

    def _admit(self, source: RequestSource) -> None:
        """Fill free slots: first with rows that gave way, then from the source, in order."""
        while self._swapped and self._scheduler.reseat(self._swapped[0][0]):
            row, swapped = self._swapped.popleft()
            self._runner.swap_in(row.slot, row.blocks.table, swapped)
        entered: list[Running] = []
        prefixes: list[Columns] = []
        while not self._swapped and self._scheduler.has_slot:
            request = self._next(source)
            if request is None:
                break
            if not self._scheduler.fits(request):
                self._held = request
                break
            row, prefix = self._scheduler.place(request, time.perf_counter())
            assert row.limit <= self.settings.capacity, (row.limit, self.settings.capacity)
            entered.append(row)
            if prefix is not None:
                columns = len(prefix.blocks) * BLOCK_SIZE
                prefixes.append(Columns(request.prompt[:, :columns], prefix.blocks, 0))
        started = time.perf_counter()  # waiting for the source is not reading
        for _ in self._read(prefixes):
            pass  # only their keys and values are wanted
        self._enter(entered)
        self.stats.prefixes += len(prefixes)
        self.stats.prefill_rows += len(entered)
        self.stats.prefill_s += time.perf_counter() - started

    def _next(self, source: RequestSource) -> Request | None:
        if self._held is not None:
            request, self._held = self._held, None
            return request
        return None if source.exhausted else source.take(wait=not self._scheduler.running)

    def _enter(self, rows: list[Running]) -> None:
        """Read the prompts of new rows, after their prefixes, and start them."""
        items = []
        for row in rows:
            prefix = row.blocks.prefix
            start = len(prefix.blocks) * BLOCK_SIZE if prefix is not None else 0
            items.append(Columns(row.request.prompt[:, start:], row.blocks.table, start))
        for group, hidden in self._read(items):
            slots = [rows[index].slot for index in group]
            self._runner.enter(slots, [rows[index].request for index in group], hidden)

    def _read(self, items: list[Columns]) -> Iterator[tuple[list[int], Tensor]]:
        """Read columns in groups: the indices of each group, and their last hidden states."""
        sizes = [item.grid.shape[1] for item in items]
        self.stats.prefill_columns += sum(sizes)
        for group in prefill_groups(sizes, isolated=self.settings.batching.isolated):
            yield group, self._runner.read([items[index] for index in group])

    def _make_room(self) -> None:
        """Blocks for the frames until the next look; the youngest rows give way for it."""
        for row in self._scheduler.starved(self.settings.look_every):
            swapped = self._runner.swap_out(row.slot, row.blocks.table)
            self._scheduler.release(row.slot)
            self._swapped.appendleft((row, swapped))
            self.stats.preempted += 1

    def run_frame(self) -> None:
        """One frame of all rows in slots; called by :meth:`generate`, or by who times it."""
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
            self._scheduler.release(slot)
            finished.append(FinishedCodes(row.request.id, codes, reason))
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
