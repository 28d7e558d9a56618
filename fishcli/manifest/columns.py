"""The carried-through columns of a manifest: which there are, and one type for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from fishcli.errors import UsageError

ColumnKind = Literal["empty", "bool", "int", "float", "string", "json"]

COLUMNS_LIMIT = 1000
INT64 = range(-(2**63), 2**63)

_KINDS: dict[type, ColumnKind] = {bool: "bool", int: "int", float: "float", str: "string"}
_encode = msgspec.json.Encoder(enc_hook=str).encode


class ColumnKinds:
    """Learns, row by row, the narrowest type that holds every value of a column.

    Whole numbers and floats together are floats; any other mixture, lists and objects are
    kept as JSON in a string.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, ColumnKind] = {}

    def items(self) -> Iterable[tuple[str, ColumnKind]]:
        """Columns in the order they appeared, with their kind."""
        return self._kinds.items()

    def note(self, extra: Mapping[str, Any]) -> None:
        """Take one row's columns into account.

        Raises :class:`UsageError` when there are more than a table can sensibly have: then
        the manifest uses values as names.
        """
        kinds = self._kinds
        for name, value in extra.items():
            kind = _kind(value)
            known = kinds.get(name)
            if known != kind:
                kinds[name] = kind if known is None else _both(known, kind)
                if len(kinds) > COLUMNS_LIMIT:
                    raise UsageError(f"the manifest has more than {COLUMNS_LIMIT} columns")


def as_kind(value: Any, kind: ColumnKind) -> bool | int | float | str | None:
    """``value`` as the column's type stores it; None stays None."""
    if value is None or kind == "empty":
        return None
    if kind == "json":
        return _encode(value).decode()
    if kind == "float":
        return float(value)
    known: bool | int | str = value
    return known


def _kind(value: Any) -> ColumnKind:
    if value is None:
        return "empty"
    kind = _KINDS.get(value.__class__, "json")
    return "json" if kind == "int" and value not in INT64 else kind


def _both(one: ColumnKind, other: ColumnKind) -> ColumnKind:
    if "empty" in {one, other}:
        return other if one == "empty" else one
    return "float" if {one, other} == {"int", "float"} else "json"
