"""Who owns which block of the KV cache; holds no tensors.

Block 0 belongs to nobody: slots without a row point at it, so what they still write
does no harm. A prefix (the part of a prompt that all rows of one voice share) owns its
blocks once, however many rows read them, and stays for the next row until its blocks are
needed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

TRASH = 0


@dataclass(slots=True)
class Prefix:
    """Blocks that hold the same whole leading columns of many prompts."""

    key: bytes
    blocks: list[int]
    readers: int = 0


@dataclass(slots=True)
class RowBlocks:
    """The blocks of one row in the order of its positions: the prefix's, then its own."""

    prefix: Prefix | None
    own: list[int] = field(default_factory=list)

    @property
    def table(self) -> list[int]:
        """All blocks, by position."""
        return [*(self.prefix.blocks if self.prefix else ()), *self.own]

    @property
    def count(self) -> int:
        """Number of blocks."""
        return len(self.own) + (len(self.prefix.blocks) if self.prefix else 0)


class BlockManager:
    """Hands out ``blocks`` blocks of ``block_size`` positions, the trash block not counted."""

    def __init__(self, blocks: int, block_size: int) -> None:
        assert blocks >= 1 and block_size >= 1, (blocks, block_size)
        self.blocks = blocks
        self.block_size = block_size
        self._free = list(range(blocks, TRASH, -1))  # a stack: the lowest on top
        self._prefixes: OrderedDict[bytes, Prefix] = OrderedDict()  # least recently used first

    def needed(self, positions: int) -> int:
        """Blocks that hold ``positions`` positions."""
        return -(-positions // self.block_size)

    @property
    def available(self) -> int:
        """Blocks that are free or can be made free: those of prefixes nobody reads."""
        idle = (p for p in self._prefixes.values() if p.readers == 0)
        return len(self._free) + sum(len(prefix.blocks) for prefix in idle)

    def has_prefix(self, key: bytes) -> bool:
        """Whether a prefix is there."""
        return key in self._prefixes

    def held(self, key: bytes | None) -> int:
        """Blocks of a prefix that rows are reading, so that one more row costs nothing."""
        prefix = self._prefixes.get(key) if key is not None else None
        return len(prefix.blocks) if prefix is not None and prefix.readers else 0

    def make_prefix(self, key: bytes, positions: int) -> Prefix | None:
        """Blocks for a new prefix of whole blocks; the caller fills them at once.

        None if there is no room.
        """
        assert positions % self.block_size == 0 and key not in self._prefixes
        blocks = self._take(self.needed(positions))
        if blocks is None:
            return None
        prefix = self._prefixes[key] = Prefix(key, blocks)
        return prefix

    def open_row(self, prefix_key: bytes | None) -> RowBlocks:
        """The blocks of a new row: as yet only those of its prefix, which must be there."""
        if prefix_key is None:
            return RowBlocks(None)
        prefix = self._prefixes[prefix_key]
        self._prefixes.move_to_end(prefix_key)
        prefix.readers += 1
        return RowBlocks(prefix)

    def grow(self, row: RowBlocks, positions: int) -> bool:
        """Make room in ``row`` for ``positions`` in all; False, and no change, without room."""
        missing = self.needed(positions) - row.count
        if missing <= 0:
            return True
        blocks = self._take(missing)
        if blocks is None:
            return False
        row.own += blocks
        return True

    def close_row(self, row: RowBlocks) -> None:
        """The row's own blocks are free again; its prefix has a reader less."""
        self._free += reversed(row.own)
        row.own = []
        if row.prefix is not None:
            row.prefix.readers -= 1
            row.prefix = None

    def check(self) -> None:
        """With no row open, every block must be free or a prefix's, once; else a leak."""
        assert all(prefix.readers == 0 for prefix in self._prefixes.values())
        owned = [b for prefix in self._prefixes.values() for b in prefix.blocks] + self._free
        assert sorted(owned) == list(range(1, self.blocks + 1)), "a block leaked or has two owners"

    def _take(self, count: int) -> list[int] | None:
        if count > self.available:
            return None
        while len(self._free) < count:
            self._evict()
        taken = self._free[len(self._free) - count :][::-1]
        del self._free[len(self._free) - count :]
        return taken

    def _evict(self) -> None:
        key = next(key for key, prefix in self._prefixes.items() if prefix.readers == 0)
        self._free += reversed(self._prefixes.pop(key).blocks)
