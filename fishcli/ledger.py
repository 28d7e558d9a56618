"""What is done: an append-only record of every finished row, one file per writer.

A million records stay on disk; memory holds, for each id, where its last record lies.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

import msgspec

from fishcli.errors import RunError, UsageError

FOLDER = "ledger"

# A place packs (file, offset, length) into one number.
LENGTH_BITS = 24
OFFSET_BITS = 44
LINE_LIMIT = 2**LENGTH_BITS

# What decoding a damaged line may raise; RecursionError where it is nested too deeply.
NOT_A_RECORD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Status = Literal["ok", "capped", "failed"]


class Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How one row ended. Filled by the writer of its file, or by whoever gave it up."""

    id: str
    fingerprint: str
    status: Status
    reason: str = ""  # a failed row's short word, e.g. no_audio
    message: str = ""
    passing: bool = False  # a failure that a plain rerun tries again
    file: str = ""  # relative to the output folder; empty without one
    bytes: int = 0
    frames: int = 0
    duration_s: float = 0.0
    finish_reason: str = ""  # stop or length
    seed: int = 0
    model: str = ""
    rtf: float | None = None  # seconds of work per second of audio
    ttfp_s: float | None = None  # from entering a slot to the first audio
    wall_s: float | None = None
    prompt_tokens: int = 0
    flags: tuple[str, ...] = ()  # warnings, clamped samples, …
    time: float = 0.0  # Unix time of the record


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Ledger:
    """All records of an output folder, the last one of each id counting.

    :meth:`open` is for the one run that writes, :meth:`read` for everyone else.
    ``damaged`` counts lines that are no record, e.g. one torn by a crash; its row is
    simply not done. All methods may be called from any thread.
    """

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._places: dict[str, int] = {}
        self._files: list[int] = []  # descriptors, by the file's number in a place
        self._own = -1  # number of the file this object appends to
        self._end = 0  # its size
        self._torn = False  # whether it ends inside a line
        self.damaged = 0
        self._folder = folder

    @classmethod
    def open(cls, out_dir: Path, writer: str = "main") -> Self:
        """The ledger for writing as ``writer``, who must be alone.

        Raises :class:`UsageError` if another run holds it, :class:`RunError` if the disk
        refuses.
        """
        ledger = cls(out_dir / FOLDER)
        try:
            ledger._folder.mkdir(parents=True, exist_ok=True)
            ledger._lock_own(ledger._folder / f"{writer}.jsonl", out_dir)
            ledger._load()
        except OSError as error:
            ledger.close()
            raise RunError(f"cannot open the ledger in {out_dir}: {error.strerror}") from error
        except UsageError:
            ledger.close()
            raise
        return ledger

    @classmethod
    def read(cls, out_dir: Path) -> Self:
        """The ledger as it is now, without waiting for or hindering a run that writes."""
        ledger = cls(out_dir / FOLDER)
        try:
            ledger._load()
        except OSError as error:
            ledger.close()
            raise RunError(f"cannot read the ledger in {out_dir}: {error.strerror}") from error
        return ledger

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, row_id: str) -> bool:
        return row_id in self._places

    def __iter__(self) -> Iterator[Record]:
        """The records that count, in the order their ids first appeared."""
        for place in list(self._places.values()):
            yield self._record(place)

    def get(self, row_id: str) -> Record | None:
        """The last record of ``row_id``, read from disk."""
        place = self._places.get(row_id)
        return None if place is None else self._record(place)

    def append(self, records: Sequence[Record]) -> None:
        """Write ``records`` and return once they are on disk (one fsync for all).

        Raises :class:`RunError` if the disk refuses; the file then ends as before.
        """
        lines = [_encode(record) + b"\n" for record in records]
        if not lines:
            return
        assert all(len(line) < LINE_LIMIT for line in lines)
        with self._lock:
            assert self._own >= 0, "opened for reading only"
            lead = b"\n" if self._torn else b""
            self._write(lead + b"".join(lines))
            offset = self._end + len(lead)
            for record, line in zip(records, lines, strict=True):
                self._places[record.id] = _place(self._own, offset, len(line))
                offset += len(line)
            self._end, self._torn = offset, False

    def close(self) -> None:
        """Release the lock and the files. A second call does nothing."""
        with self._lock:
            for descriptor in self._files:
                os.close(descriptor)
            self._files, self._places, self._own = [], {}, -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _lock_own(self, path: Path, out_dir: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._own = len(self._files)
        self._files.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another run is writing to {out_dir}: wait for it to end") from error

    def _load(self) -> None:
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb", buffering=2**20) as file:
                number = self._own
                if number < 0 or not os.path.sameopenfile(self._files[number], file.fileno()):
                    number = len(self._files)
                    self._files.append(os.dup(file.fileno()))
                self._load_file(number, file)

    def _load_file(self, number: int, file: IO[bytes]) -> None:
        """Index one file. Within it the later record wins, across files the younger one."""
        offset = 0
        line = b"\n"
        for line in iter(partial(file.readline, LINE_LIMIT - 1), b""):
            try:
                record = _decode(line) if line.endswith(b"\n") else None
            except NOT_A_RECORD:
                record = None
            if record is not None:
                self._note(number, offset, len(line), record)
            elif not line.isspace():
                self.damaged += 1
            offset += len(line)
        if number == self._own:
            self._end, self._torn = offset, not line.endswith(b"\n")

    def _note(self, number: int, offset: int, length: int, record: Record) -> None:
        known = self._places.get(record.id)
        elsewhere = known is not None and known >> (OFFSET_BITS + LENGTH_BITS) != number
        if known is not None and elsewhere and self._record(known).time > record.time:
            return
        self._places[record.id] = _place(number, offset, length)

    def _record(self, place: int) -> Record:
        length = place & (LINE_LIMIT - 1)
        offset = place >> LENGTH_BITS & (2**OFFSET_BITS - 1)
        descriptor = self._files[place >> (OFFSET_BITS + LENGTH_BITS)]
        try:
            return _decode(os.pread(descriptor, length, offset))
        except (OSError, msgspec.MsgspecError) as error:
            raise RunError(f"the ledger in {self._folder} changed under this run") from error

    def _write(self, data: bytes) -> None:
        descriptor = self._files[self._own]
        try:
            written = 0
            while written < len(data):
                written += os.write(descriptor, data[written:])
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, self._end)
            raise RunError(
                f"cannot write the ledger in {self._folder}: {error.strerror}"
            ) from error


def _place(number: int, offset: int, length: int) -> int:
    return (number << OFFSET_BITS | offset) << LENGTH_BITS | length
