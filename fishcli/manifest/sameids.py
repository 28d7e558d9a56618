"""Finds rows whose files would overwrite each other, at eight bytes a row."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

import numpy as np

from fishcli.errors import UsageError
from fishcli.manifest.ids import fold
from fishcli.records import BadRow, Row

CLASHES_SHOWN = 5


class SameIds:
    """Collects a hash of every id, folded as file systems fold names."""

    def __init__(self) -> None:
        self._keys = array("q")

    def add(self, row_id: str) -> None:
        """Note the id of the next row."""
        self._keys.append(hash(fold(row_id)))

    def check(self, rows: Callable[[], Iterable[Row | BadRow]]) -> None:
        """Raise :class:`UsageError` naming the lines of ids that are one name.

        Equal hashes are only a hint; if there are any, ``rows`` is asked for all rows again
        and the ids themselves are compared.
        """
        values, counts = np.unique(np.frombuffer(self._keys, np.int64), return_counts=True)
        suspects = frozenset(values[counts > 1].tolist())
        clashes = _clashes(rows(), suspects) if suspects else []
        if clashes:
            raise UsageError(f"every row needs a file of its own: {'; '.join(clashes)}")


def _clashes(rows: Iterable[Row | BadRow], suspects: frozenset[int]) -> list[str]:
    first: dict[str, Row | BadRow] = {}
    found: list[str] = []
    for row in rows:
        name = fold(row.id)
        other = first.setdefault(name, row) if hash(name) in suspects else row
        if other is not row:
            found.append(_clash(other, row))
            if len(found) == CLASHES_SHOWN:
                break
    return found


def _clash(one: Row | BadRow, two: Row | BadRow) -> str:
    lines = f"lines {one.line} and {two.line}"
    if one.id == two.id:
        return f"{lines} both have the id {one.id!r}"
    return f"{lines} have the ids {one.id!r} and {two.id!r}, one name on many file systems"
