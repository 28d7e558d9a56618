"""CSV and TSV manifests with a header line."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fishcli.errors import UsageError
from fishcli.manifest.record import Manifest, RawRecord


class CsvFile(Manifest):
    """Comma-separated with the usual quotes, or tab-separated without any quoting.

    Tab-separated corpora carry lone quotation marks in their texts; reading those as
    quoting would swallow the following rows.
    """

    numbers_are_text = True

    def __init__(self, path: Path, folder: Path, *, tabs: bool) -> None:
        super().__init__(path, folder)
        self._dialect: dict[str, Any] = (
            {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
        )

    def _read(self) -> Iterator[RawRecord]:
        # Bytes that are not UTF-8 become lone surrogates, so that only their row fails.
        with self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, **self._dialect)
            names = self._header(reader)
            while True:
                number = reader.line_num + 1  # a quoted field may span lines: this is the first
                try:
                    values = next(reader, None)
                except csv.Error as error:
                    yield RawRecord(number, None, f"not valid CSV: {error}")
                    continue
                if values is None:
                    return
                if values:
                    yield _record(number, names, values)

    def _header(self, reader: Iterator[list[str]]) -> list[str]:
        try:
            values = next(reader, [])
        except csv.Error as error:
            raise UsageError(f"{self.name}: the header line is not valid CSV: {error}") from error
        names = [name.strip() or f"column_{place}" for place, name in enumerate(values, start=1)]
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise UsageError(f"{self.name}: the header names {', '.join(twice)} twice")
        if not "".join(names).isprintable():
            raise UsageError(f"{self.name}: the header line is not text in UTF-8")
        return names


def _record(number: int, names: list[str], values: list[str]) -> RawRecord:
    if len(values) != len(names):
        return RawRecord(number, None, f"{len(values)} fields: the header has {len(names)}")
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return RawRecord(number, None, "not valid UTF-8")
    # An empty cell says nothing, as a field that JSON leaves out.
    return RawRecord(
        number, {name: value or None for name, value in zip(names, values, strict=True)}
    )
