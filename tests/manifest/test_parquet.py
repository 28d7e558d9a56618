"""Parquet manifests: streaming, odd types, embedded clips."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fishcli.errors import RunError, UsageError
from fishcli.manifest import RowDefaults, RowSource, open_manifest
from fishcli.manifest.parquet import ParquetFile
from fishcli.records import Row

AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def rows_of(path: Path, spool: Path | None = None) -> list[Any]:
    manifest = open_manifest(path, spool_dir=spool)
    first = list(RowSource(manifest, RowDefaults()))
    assert list(RowSource(manifest, RowDefaults())) == first
    return first


def test_values_arrive_as_python_values_and_nulls_as_absent(tmp_path: Path) -> None:
    columns = {
        "id": pa.array([7, 8, None]),
        "text": pa.array(["a", "b", "c"]).dictionary_encode(),
        "temperature": pa.array([0.5, float("nan"), None]),
        "top_k": pa.array([5.0, None, None]),
        "tags": [["x"], [], None],
        "good": [True, None, False],
    }
    one, two, three = rows_of(write(tmp_path / "m.parquet", columns))
    assert (one.id, one.line, one.text) == ("7", 1, "a")
    assert (one.sampling.temperature, one.sampling.top_k) == (0.5, 5)
    assert two.sampling == three.sampling == RowDefaults().sampling
    assert len(three.id) == 16
    assert [dict(row.extra) for row in (one, two, three)] == [
        {"tags": ["x"], "good": True},
        {"tags": [], "good": None},
        {"tags": None, "good": False},
    ]


def test_rows_keep_their_numbers_across_batches(tmp_path: Path) -> None:
    columns = {"text": [f"text {n}" for n in range(20_000)]}
    path = write(tmp_path / "m.parquet", columns, row_group_size=3000)
    assert [row.line for row in rows_of(path)] == list(range(1, 20_001))


def test_a_string_that_is_not_utf8_is_that_rows_error(tmp_path: Path) -> None:
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1, 2, 3)))
    text = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"a\xffc")])
    rows = rows_of(write(tmp_path / "m.parquet", {"text": text}))
    assert [isinstance(row, Row) for row in rows] == [True, False, True]
    assert rows[1].problems[0].startswith("row 2: text cannot be read")


def test_columns_of_bytes_are_left_out_and_named(tmp_path: Path) -> None:
    columns = {
        "text": ["a"],
        "image": [b"xx"],
        "audio": pa.array([{"bytes": b"xx", "path": "a.wav"}], AUDIO),
    }
    manifest = open_manifest(write(tmp_path / "m.parquet", columns))
    assert isinstance(manifest, ParquetFile)
    assert manifest.dropped_columns == ("image", "audio")
    assert [record.fields for record in manifest.records()] == [{"text": "a"}]


def test_embedded_clips_are_spooled_once_by_content(tmp_path: Path) -> None:
    (tmp_path / "own.wav").write_bytes(b"own")
    clips = [
        {"bytes": b"one", "path": "x/a.wav"},
        {"bytes": b"one", "path": "b.wav"},
        {"bytes": b"two", "path": None},
        {"bytes": None, "path": "own.wav"},
        None,
    ]
    columns = {
        "text": ["t"] * 5,
        "ref_audio": pa.array(clips, AUDIO),
        "ref_text": ["said"] * 4 + [None],
    }
    path = write(tmp_path / "m.parquet", columns)
    rows = rows_of(path, tmp_path / "spool")
    paths = [row.reference.path if row.reference else None for row in rows]
    assert paths[0] == paths[1]
    assert [p.read_bytes() for p in paths if p] == [b"one", b"one", b"two", b"own"]
    assert paths[3] == tmp_path / "own.wav"
    assert paths[4] is None
    assert len(list((tmp_path / "spool").iterdir())) == 2
    # A derived id names the clip's content, not the folder it was spooled to.
    elsewhere = rows_of(path, tmp_path / "elsewhere")
    assert [row.id for row in elsewhere] == [row.id for row in rows]


def test_without_a_folder_clips_are_spooled_to_a_temporary_one(tmp_path: Path) -> None:
    columns = {
        "text": ["t"],
        "ref_audio": pa.array([{"bytes": b"one", "path": "a.wav"}], AUDIO),
        "ref_text": ["said"],
    }
    manifest = open_manifest(write(tmp_path / "m.parquet", columns))
    (row,) = RowSource(manifest, RowDefaults())
    assert isinstance(row, Row)
    assert row.reference is not None
    assert row.reference.path.read_bytes() == b"one"
    manifest.close()
    assert not row.reference.path.exists()


def test_gigabytes_of_embedded_clips_would_stream(tmp_path: Path) -> None:
    """Reading takes the memory of a few batches, not of the file."""
    path = tmp_path / "m.parquet"
    schema = pa.schema([("text", pa.string()), ("ref_audio", AUDIO), ("ref_text", pa.string())])
    clip = bytes(200_000)
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for group in range(4):
            clips = [{"bytes": clip + bytes([group, n]), "path": "a.wav"} for n in range(64)]
            columns = {"text": ["t"] * 64, "ref_audio": clips, "ref_text": ["s"] * 64}
            writer.write_table(pa.table(columns, schema=schema))
    assert path.stat().st_size > 50_000_000
    before, peak = pa.total_allocated_bytes(), 0
    with open_manifest(path, spool_dir=tmp_path / "spool") as manifest:
        for _ in manifest.records():
            peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 20_000_000
    assert len(list((tmp_path / "spool").iterdir())) == 256


def test_what_is_no_parquet_is_refused_and_a_damaged_file_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(UsageError, match="not a Parquet file"):
        open_manifest(path)
    write(path, {"text": [f"{n} text" for n in range(10_000)]}, compression="snappy")
    data = bytearray(path.read_bytes())
    data[200:4000] = b"\xff" * 3800
    path.write_bytes(data)
    with pytest.raises(RunError, match="damaged"):
        list(open_manifest(path).records())
