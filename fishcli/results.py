"""The two tables a run leaves: ``results.parquet`` for every row, ``metadata.jsonl`` for audio.

Both are the manifest's rows, in its order, joined with the ledger; nothing is kept in
memory but one batch. Both are written aside and put in place whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from fishcli.card import write_card
from fishcli.errors import RowError, RunError
from fishcli.fingerprint import Fingerprinter
from fishcli.ledger import Ledger, Record
from fishcli.manifest.columns import ColumnKind, as_kind
from fishcli.outdir import OutputFolder, atomic_write
from fishcli.plan import Plan
from fishcli.records import BadRow, Row

BATCH_ROWS = 8192
PENDING = "pending"  # neither done nor failed: the run stopped before, or was not asked to

OUR_COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("line", pa.int64()),
        ("status", pa.string()),  # ok, capped, failed, or pending
        ("reason", pa.string()),
        ("message", pa.string()),
        ("file", pa.string()),  # relative to the output folder; null without one
        ("duration_s", pa.float64()),
        ("frames", pa.int64()),
        ("finish_reason", pa.string()),
        ("seed", pa.int64()),
        ("model", pa.string()),
        ("fingerprint", pa.string()),
        ("rtf", pa.float64()),
        ("ttfp_s", pa.float64()),
        ("flags", pa.list_(pa.string())),
        ("text", pa.string()),
        ("reference", pa.string()),  # the clip or voice file
    ]
)
# Names a carried-through column may not have: keys of metadata.jsonl, and columns that the
# audiofolder loader makes itself.
RESERVED = frozenset((*OUR_COLUMNS.names, "file_name", "file_names", "duration", "audio", "label"))

_ARROW_TYPES: dict[ColumnKind, pa.DataType] = {
    "empty": pa.string(),
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "json": pa.string(),
}
_encode = msgspec.json.Encoder().encode


def write_results(
    plan: Plan, ledger: Ledger, fingerprinter: Fingerprinter, out: OutputFolder
) -> None:
    """Write both tables for all rows of ``plan`` as the ledger knows them now, and the card.

    A record whose fingerprint is no longer the row's counts as not there: its file says
    something else. Raises :class:`RunError` if the disk refuses or the manifest changed.
    """
    tables = _Tables(plan, ledger, fingerprinter)

    def with_table(table: IO[bytes]) -> None:
        atomic_write(out.path / "metadata.jsonl", lambda lines: tables.write(table, lines))

    try:
        atomic_write(out.path / "results.parquet", with_table)
        write_card(out)
    except OSError as error:
        raise RunError(f"cannot write the results: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class _Carried:
    """A carried-through column: its name in the manifest, its name with us, its type."""

    source: str
    name: str
    kind: ColumnKind


class _Tables:
    """Joins rows and records into batches of both tables."""

    def __init__(self, plan: Plan, ledger: Ledger, fingerprinter: Fingerprinter) -> None:
        self._plan = plan
        self._ledger = ledger
        self._fingerprinter = fingerprinter
        self._carried = _carried_columns(plan.columns.items())
        fields = [pa.field(column.name, _ARROW_TYPES[column.kind]) for column in self._carried]
        self._schema = pa.schema([*OUR_COLUMNS, *fields])

    def write(self, table: IO[bytes], lines: IO[bytes]) -> None:
        """One pass over the rows: Parquet to ``table``, JSON Lines to ``lines``."""
        rows = self._plan.rows()
        with pq.ParquetWriter(table, self._schema) as writer:
            while batch := list(islice(rows, BATCH_ROWS)):
                writer.write_table(self._batch(batch, lines))

    def _batch(self, rows: list[Row | BadRow], lines: IO[bytes]) -> pa.Table:
        values: list[tuple[Any, ...]] = []
        for row in rows:
            record = self._record(row) if isinstance(row, Row) else None
            carried = [as_kind(row.extra.get(c.source), c.kind) for c in self._carried]
            if isinstance(row, BadRow):
                values.append((*_bad(row), *carried))
            else:
                values.append((*_joined(row, record), *carried))
                if record is not None and record.file:
                    lines.write(_encode(self._metadata(row, record, carried)) + b"\n")
        columns = zip(*values, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _record(self, row: Row) -> Record | None:
        record = self._ledger.get(row.id)
        try:
            if record and self._fingerprinter.fingerprint(row) == record.fingerprint:
                return record
        except RowError:  # the reference is gone, so what it sounded like is unknown
            pass
        return None

    def _metadata(self, row: Row, record: Record, carried: list[Any]) -> dict[str, Any]:
        """One line of metadata.jsonl; every line has the same keys."""
        return {
            "file_name": record.file,
            "id": row.id,
            "text": row.text,
            "duration": record.duration_s,
            "status": record.status,
            **{
                column.name: value
                for column, value in zip(self._carried, carried, strict=True)
                if column.kind != "empty"
            },
        }


def _joined(row: Row, record: Record | None) -> tuple[Any, ...]:
    """Values of OUR_COLUMNS for a valid row."""
    reference = None
    if row.reference:  # the name of a file need not be UTF-8, that of a column's value must
        reference = str(row.reference.path).encode(errors="replace").decode()
    if record is None:
        told = {"id": row.id, "line": row.line, "status": PENDING, "seed": row.seed}
        told |= {"text": row.text, "reference": reference}
        return tuple(told.get(name) for name in OUR_COLUMNS.names)
    return (
        row.id,
        row.line,
        record.status,
        record.reason or None,
        record.message or None,
        record.file or None,
        record.duration_s,
        record.frames,
        record.finish_reason or None,
        row.seed,
        record.model or None,
        record.fingerprint,
        record.rtf,
        record.ttfp_s,
        list(record.flags),
        row.text,
        reference,
    )


def _bad(row: BadRow) -> tuple[Any, ...]:
    """Values of OUR_COLUMNS for a row that cannot be done."""
    told = (row.id, row.line, "failed", row.reason, "; ".join(row.problems))
    return (*told, *(None,) * (len(OUR_COLUMNS) - len(told)))


def _carried_columns(columns: Iterable[tuple[str, ColumnKind]]) -> list[_Carried]:
    """Give every carried-through column a name that is neither ours nor another's."""
    kinds = dict(columns)
    taken = set(RESERVED)
    carried = []
    for source, kind in kinds.items():
        # The audiofolder loader opens what a column called *_file_name(s) holds.
        name = source.replace("file_name", "filename") if _is_file_column(source) else source
        while name in taken or (name != source and name in kinds):
            name = f"manifest_{name}"
        taken.add(name)
        carried.append(_Carried(source, name, kind))
    return carried


def _is_file_column(name: str) -> bool:
    return name.endswith(("file_name", "file_names"))
