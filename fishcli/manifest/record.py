"""What every manifest format has in common: raw records, and a file that must not change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from fishcli.errors import RunError


class RawRecord(NamedTuple):
    """One record as the file has it. Exactly one of ``fields`` and ``error`` is set."""

    line: int  # line (text formats) or row number (Parquet), from 1
    fields: dict[str, Any] | None
    error: str | None = None  # why the record cannot be read, without the line number


class Manifest(ABC):
    """A manifest that can be read any number of times, always streaming.

    Planning reads it once, the run a second time and the results a third; row numbers
    must mean the same in every pass, so a file that changes in between ends the run.
    """

    unit = "line"  # what ``RawRecord.line`` counts, for messages
    numbers_are_text = False  # CSV and the like: "0.7" stands for 0.7
    spool_prefix = ""  # paths that start so are copies of audio embedded in the manifest

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path  # the file that is read; for standard input its spooled copy
        self.folder = folder  # what relative paths in the manifest are relative to
        self.name = str(path)  # as messages call it
        self._state = self._look()

    @abstractmethod
    def _read(self) -> Iterator[RawRecord]:
        """One pass over the file."""

    def records(self) -> Iterator[RawRecord]:
        """Every record in order; an unreadable one comes with its error.

        Raises :class:`RunError` if the file changed since it was opened or cannot be read.
        """
        self._check_unchanged()
        try:
            yield from self._read()
        except OSError as error:
            raise RunError(f"cannot read {self.name}: {error.strerror or error}") from error
        self._check_unchanged()

    def close(self) -> None:  # noqa: B027 - most formats have nothing to give back
        """Give back temporary files. The manifest cannot be read afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _look(self) -> tuple[int, int]:
        stat = self.path.stat()
        return stat.st_size, stat.st_mtime_ns

    def _check_unchanged(self) -> None:
        try:
            same = self._look() == self._state
        except OSError as error:
            raise RunError(f"{self.name} is gone: {error.strerror}") from error
        if not same:
            raise RunError(f"{self.name} changed while it was being read; start again")
