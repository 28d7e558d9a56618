"""Parquet manifests: streamed in small batches, with embedded audio spooled to files."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fishcli.errors import RunError, UsageError
from fishcli.manifest.record import Manifest, RawRecord
from fishcli.outdir import atomic_write

BATCH_ROWS = 8192
AUDIO_BATCH_ROWS = 16  # of a manifest with embedded clips, which may be megabytes each
READ_AHEAD = 2**20  # bytes a column reads at a time, instead of its whole chunk
DIGEST_BYTES = 16
AUDIO_COLUMNS = ("ref_audio", "prompt_wav", "prompt_audio")


class ParquetFile(Manifest):
    """One record a row; a null says nothing, as a field that JSON leaves out.

    Columns of raw bytes are not read (``dropped_columns`` names them), except a reference
    in Hugging Face's form ``{bytes, path}``: each distinct clip is written once to
    ``spool_dir`` under the name of its content, and the record then holds that path.
    Later passes don't read the bytes again.
    """

    unit = "row"

    def __init__(self, path: Path, folder: Path, spool_dir: Path | None) -> None:
        super().__init__(path, folder)
        with self._open() as file:
            schema: pa.Schema = file.schema_arrow
        names = list(schema.names)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"{path} has two columns named {', '.join(twice)}")
        self._audio = tuple(f.name for f in schema if _is_embedded_audio(f))
        self.dropped_columns = tuple(
            f.name for f in schema if f.name not in self._audio and _holds_bytes(f.type)
        )
        self._plain = [n for n in names if n not in self._audio + self.dropped_columns]
        self._spool_dir = spool_dir
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if self._audio:
            self.spool_prefix = f"{self._spool_folder()}/"
        # Content digests of the clips, row by row, known after one whole pass.
        self._digests: dict[str, bytearray] | None = None

    def close(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def _read(self) -> Iterator[RawRecord]:
        if not self._audio:
            yield from self._rows(self._plain, BATCH_ROWS)
        elif self._digests is not None:
            paths = [f"{name}.path" for name in self._audio]
            yield from self._spooled(self._rows([*self._plain, *paths], BATCH_ROWS))
        else:
            seen = {name: bytearray() for name in self._audio}
            rows = self._rows([*self._plain, *self._audio], AUDIO_BATCH_ROWS)
            yield from self._spooling(rows, seen)
            self._digests = seen

    def _rows(self, columns: list[str], batch_rows: int) -> Iterator[RawRecord]:
        number = 0
        try:
            with self._open() as file:
                for batch in file.iter_batches(batch_rows, columns=columns):
                    yield from _records(batch, number)
                    number += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise RunError(f"{self.name} is damaged after row {number}: {error}") from error

    def _spooling(
        self, rows: Iterator[RawRecord], seen: dict[str, bytearray]
    ) -> Iterator[RawRecord]:
        """First pass: write every new clip, note its digest, replace it by its path."""
        for row in rows:
            for name in self._audio:
                clip = row.fields.get(name) if row.fields else None
                data = clip["bytes"] if clip else None
                digest = _digest(data) if data else bytes(DIGEST_BYTES)
                seen[name] += digest
                if row.fields and clip:
                    row.fields[name] = self._place(clip["path"], digest)
                    if data:
                        self._write(Path(row.fields[name]), data)
            yield row

    def _spooled(self, rows: Iterator[RawRecord]) -> Iterator[RawRecord]:
        """A later pass: the digests say where each row's clip lies."""
        assert self._digests is not None
        for row in rows:
            start = (row.line - 1) * DIGEST_BYTES
            for name, digests in self._digests.items():
                clip = row.fields.get(name) if row.fields else None
                if row.fields and clip:
                    digest = bytes(digests[start : start + DIGEST_BYTES])
                    row.fields[name] = self._place(clip["path"], digest)
            yield row

    def _place(self, path: str | None, digest: bytes) -> str | None:
        if not any(digest):  # nothing embedded: an ordinary path
            return path
        suffix = PurePath(path or "").suffix
        suffix = suffix if suffix[1:].isalnum() and len(suffix) <= 6 else ".audio"
        return f"{self.spool_prefix}{digest.hex()}{suffix}"

    def _write(self, place: Path, data: bytes) -> None:
        if not place.exists() or place.stat().st_size != len(data):
            place.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(place, data, durable=False)  # can be made again from the manifest

    def _spool_folder(self) -> Path:
        if self._spool_dir is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fishcli-spool-")
            return Path(self._temporary.name)
        return self._spool_dir.absolute()

    def _open(self) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self.path, buffer_size=READ_AHEAD, pre_buffer=False)
        except pa.ArrowException as error:
            raise UsageError(f"{self.name} is not a Parquet file: {error}") from error


def _records(batch: pa.RecordBatch, before: int) -> Iterator[RawRecord]:
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    damaged = {  # rare: rows with a value that Python cannot hold
        place: f"{name} cannot be read: {value.why}"
        for name, column in zip(names, columns, strict=True)
        for place, value in enumerate(column)
        if value.__class__ is _Unreadable
    }
    if not names:
        columns, names = [[None] * batch.num_rows], ["text"]
    for place, values in enumerate(zip(*columns, strict=True)):
        if place in damaged:
            yield RawRecord(before + place + 1, None, damaged[place])
        else:
            yield RawRecord(before + place + 1, dict(zip(names, values, strict=True)))


class _Unreadable:
    def __init__(self, why: str) -> None:
        self.why = why


def _values(array: pa.Array) -> list[Any]:
    """Python values of a column; numpy's conversion is ten times that of ``to_pylist``."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    number = pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)
    try:
        if text or (number and array.null_count == 0):
            values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
            return values
        return list(array.to_pylist())
    except (pa.ArrowException, ValueError):
        return [_value(scalar) for scalar in array]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (pa.ArrowException, ValueError) as error:
        return _Unreadable(str(error))


def _is_embedded_audio(field: pa.Field) -> bool:
    kind = field.type
    if field.name not in AUDIO_COLUMNS or not pa.types.is_struct(kind):
        return False
    return {kind.field(i).name for i in range(kind.num_fields)} >= {"bytes", "path"}


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in (*binary, pa.types.is_binary_view))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
