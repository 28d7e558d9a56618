"""Decides which row runs where and when; holds no tensors.

Slots are filled from the lowest number, so the running ones stay close together and a
frame need not compute the empty end of a batch that drains. Rows are admitted by the
length they are expected to reach; when that was too bold, the youngest row gives way.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from fishcli.engine.blocks import BlockManager, Prefix, RowBlocks
from fishcli.records import Request

PREFILL_COLUMNS = 8192  # columns, padding counted, that go through one prefill call


@dataclass(frozen=True, slots=True)
class Batching:
    """Which slots go through a frame together.

    ``tile`` 0: all from slot 0 to the last running one, in whatever shape that gives. 1:
    every row alone. n: whole tiles of n slots, running or not. With 1 or n a row is computed
    in shapes that never depend on its company, which is what determinism takes; prompts are
    then read one at a time too.
    """

    tile: int = 0

    @property
    def isolated(self) -> bool:
        """Whether shapes are independent of the company."""
        return self.tile > 0


@dataclass(slots=True, eq=False)
class Running:
    """A row in its slot, from admission to release; ``cached`` runs ahead of the device."""

    request: Request
    slot: int
    started: float  # time.perf_counter() of the first admission
    blocks: RowBlocks
    prefix_key: bytes | None
    cached: int  # bound of its cached positions: prompt and frames asked for since

    @property
    def limit(self) -> int:
        """Positions the row can ever use."""
        return self.request.prompt.shape[1] + self.request.max_frames


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring slots that run through one frame together.

    The half-open slot range [start, end); ``length`` bounds every row's cached positions
    including the new one; ``candidates`` bounds every row's top_k.
    """

    start: int
    end: int
    length: int
    candidates: int


class Scheduler:
    """Continuous batching over ``slots`` slots and the blocks of ``manager``."""

    def __init__(self, slots: int, manager: BlockManager, batching: Batching) -> None:
        assert slots >= 1, slots
        self.manager = manager
        self.batching = batching
        self.running: dict[int, Running] = {}
        self._slots = slots
        self._free = list(range(slots))  # a heap: the lowest slot first

    @property
    def has_slot(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def fits(self, request: Request) -> bool:
        """Whether the row and those running can reach their expected lengths.

        The first row always fits: the engine has blocks for the longest.
        """
        if not self.running:
            return True
        key, _ = _prefix_of(request, self.manager.block_size)
        expected = _expected(request)
        needed = self.manager.needed(expected) - self.manager.held(key)
        growth = sum(
            max(0, self.manager.needed(_expected(row.request)) - row.blocks.count)
            for row in self.running.values()
        )
        return needed + growth <= self.manager.available

    def place(self, request: Request, now: float) -> tuple[Running, Prefix | None]:
        """Give ``request`` the lowest free slot and blocks for its prompt.

        The second result is its prefix if that is new: the caller must read it first.
        """
        key, columns = _prefix_of(request, self.manager.block_size)
        new = None
        if key is not None and not self.manager.has_prefix(key):
            new = self.manager.make_prefix(key, columns)
            assert new is not None, "a row was admitted without room for its prefix"
        row = Running(request, -1, now, self.manager.open_row(key), key, request.prompt.shape[1])
        grown = self.manager.grow(row.blocks, row.cached)
        assert grown, "a row was admitted without room for its prompt"
        self._seat(row)
        return row, new

    def release(self, slot: int) -> Running:
        """The row of ``slot`` has ended or gives way: slot and blocks can be used again."""
        row = self.running.pop(slot)
        self.manager.close_row(row.blocks)
        heapq.heappush(self._free, slot)
        return row

    def reseat(self, row: Running) -> bool:
        """Give a row that gave way a slot and blocks again; False if there is no room yet."""
        needed = self.manager.needed(max(row.cached, _expected(row.request)))
        if not self._free or (self.running and needed > self.manager.available):
            return False
        if row.prefix_key is not None and not self.manager.has_prefix(row.prefix_key):
            row.prefix_key = None  # its columns come back with the row's own
        row.blocks = self.manager.open_row(row.prefix_key)
        if not self.manager.grow(row.blocks, row.cached):
            self.manager.close_row(row.blocks)
            return False
        self._seat(row)
        return True

    def starved(self, frames: int) -> Iterable[Running]:
        """Make room for ``frames`` more frames of every row.

        Yields, youngest first, rows that must give way before it can go on; the caller
        releases each before taking the next.
        """
        for row in sorted(self.running.values(), key=_age):
            ahead = min(row.cached + frames, row.limit)
            while self.running.get(row.slot) is row and not self.manager.grow(row.blocks, ahead):
                assert len(self.running) > 1, "one row alone must fit"
                # In the order above it is the last, so it has not grown for these frames.
                yield max(self.running.values(), key=_age)

    def tables(self) -> list[list[int]]:
        """The blocks of every slot; none for those without a row."""
        return [
            self.running[slot].blocks.table if slot in self.running else []
            for slot in range(self._slots)
        ]

    def frame(self) -> list[Stretch]:
        """The stretches of slots to run through the next frame, and count it."""
        rows = [self.running[slot] for slot in sorted(self.running)]
        for row in rows:
            row.cached = min(row.cached + 1, row.limit)
        tile = self.batching.tile
        if tile == 0:
            return [_stretch(rows, 0, rows[-1].slot + 1)] if rows else []
        starts = sorted({row.slot // tile * tile for row in rows})
        return [
            _stretch([row for row in rows if row.slot // tile * tile == start], start, start + tile)
            for start in starts
        ]

    def _seat(self, row: Running) -> None:
        row.slot = heapq.heappop(self._free)
        self.running[row.slot] = row


def prefill_groups(columns: Sequence[int], *, isolated: bool) -> list[list[int]]:
    """Which rows are read together, as indices: similar lengths, under PREFILL_COLUMNS with
    their padding. ``columns``: new columns of each row."""
    groups: list[list[int]] = []
    widest = 0
    for index in sorted(range(len(columns)), key=lambda index: (-columns[index], index)):
        if groups and not isolated and (len(groups[-1]) + 1) * widest <= PREFILL_COLUMNS:
            groups[-1].append(index)
        else:
            groups.append([index])
            widest = columns[index]
    return groups


@lru_cache(maxsize=1)  # asked again when the row is placed, and at every look while it is held
def _prefix_of(request: Request, block_size: int) -> tuple[bytes | None, int]:
    """Digest and number of the columns cached once for all rows of a voice: whole blocks.

    At least the last column is always the row's own, since its hidden state is needed.
    """
    columns = min(request.shared_columns, request.prompt.shape[1] - 1) // block_size * block_size
    if columns == 0:
        return None, 0
    grid = request.prompt[:, :columns].contiguous().numpy()
    return blake2b(grid.tobytes(), digest_size=16).digest(), columns


def _expected(request: Request) -> int:
    """Positions a row is expected to use in the end."""
    frames = min(request.expected_frames or request.max_frames, request.max_frames)
    return request.prompt.shape[1] + frames


def _age(row: Running) -> tuple[float, int]:
    """Sorts rows from the oldest to the youngest; a clock may give two the same time."""
    return row.started, row.slot


def _stretch(rows: list[Running], start: int, end: int) -> Stretch:
    return Stretch(
        start=start,
        end=end,
        length=max(row.cached for row in rows),
        candidates=max(row.request.sampling.top_k for row in rows),
    )
