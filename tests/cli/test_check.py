"""``fishcli check``: every problem has a line, and the exit code tells how bad it is."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import SAMPLES


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["manifest.jsonl", "manifest-multilingual.jsonl"])
def test_the_samples_are_good(fishcli, name):
    result = fishcli("check", SAMPLES / name)
    assert result.exit_code == 0, result.output
    assert " 0 bad; " in result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_the_bad_sample_has_a_line_for_every_bad_row(fishcli):
    result = fishcli("check", SAMPLES / "manifest-bad.jsonl")
    assert result.exit_code == 3
    *problems, counts = result.stdout.splitlines()
    assert counts.startswith("11 rows: 2 valid, 9 bad;")
    assert [line.split(":")[0] for line in problems] == [f"line {n}" for n in (*range(2, 10), 11)]


def test_a_manifest_without_a_valid_row_is_bad_usage(fishcli, tmp_path):
    result = fishcli("check", write(tmp_path / "m.jsonl", [{"text": ""}]))
    assert result.exit_code == 2
    assert "has no valid row" in result.stderr
    (tmp_path / "empty.jsonl").touch()
    assert fishcli("check", tmp_path / "empty.jsonl").exit_code == 2


def test_two_rows_of_one_file_are_refused_with_both_lines(fishcli, tmp_path):
    rows = [{"id": "a", "text": "One."}, {"id": "b", "text": "Two."}, {"id": "A", "text": "Three."}]
    result = fishcli("check", write(tmp_path / "m.jsonl", rows))
    assert result.exit_code == 2
    assert "lines 1 and 3" in result.stderr


def test_a_warning_is_no_problem(fishcli, tmp_path):
    rows = [{"text": "See https://example.org for more."}]
    result = fishcli("check", write(tmp_path / "m.jsonl", rows))
    assert result.exit_code == 0
    assert result.stdout.startswith("line 1: warning: ")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "m.parquet")
    assert fishcli("check", tmp_path / "m.parquet").stdout.startswith("row 1: warning: ")
