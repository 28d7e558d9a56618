"""A padded batch of prompt columns to be read together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fishcli.engine.blocks import TRASH


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """New columns of one row: grid (1 + codebooks, new) on the host, and where they belong.

    ``table``: the row's blocks by position, covering its new columns; ``start``: position of
    the first of them.
    """

    grid: Tensor
    table: list[int]
    start: int


@dataclass(frozen=True, slots=True, eq=False)
class PromptBatch:
    """Columns of several rows, padded on the right; rows beyond the real ones read nothing.

    grids: (rows, columns, 1 + codebooks) int64; table: (rows, blocks) int32; starts,
    lengths: (rows,) int64.
    """

    grids: Tensor
    table: Tensor
    starts: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, items: Sequence[Columns], rows: int, columns: int, blocks: int) -> PromptBatch:
        """``items`` on the host in the given shape."""
        depth = items[0].grid.shape[0]
        grids = torch.zeros(rows, columns, depth, dtype=torch.int64)
        table = torch.full((rows, blocks), TRASH, dtype=torch.int32)
        starts = torch.zeros(rows, dtype=torch.int64)
        lengths = torch.ones(rows, dtype=torch.int64)  # a spare row reads one column into the trash
        for row, item in enumerate(items):
            new = item.grid.shape[1]
            grids[row, :new] = item.grid.T
            table[row, : len(item.table)] = torch.tensor(item.table, dtype=torch.int32)
            starts[row], lengths[row] = item.start, new
        return cls(grids, table, starts, lengths)

    def to(self, device: torch.device) -> PromptBatch:
        """The batch on ``device``."""
        return PromptBatch(*(part.to(device, non_blocking=True) for part in self._parts()))

    def like(self) -> PromptBatch:
        """Memory for a batch of the same shape."""
        return PromptBatch(*(torch.empty_like(part) for part in self._parts()))

    def copy_(self, other: PromptBatch) -> None:
        """Overwrite this batch with another of its shape."""
        for mine, theirs in zip(self._parts(), other._parts(), strict=True):
            mine.copy_(theirs, non_blocking=True)

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.grids, self.table, self.starts, self.lengths
