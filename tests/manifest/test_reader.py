"""Opening manifests, and reading JSON Lines, CSV, TSV and meta.lst."""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fishcli.errors import RunError, UsageError
from fishcli.manifest import RawRecord, open_manifest
from fishcli.manifest.lines import LINE_LIMIT


def records(path: Path, data: bytes) -> list[RawRecord]:
    path.write_bytes(data)
    with open_manifest(path) as manifest:
        first = list(manifest.records())
        assert list(manifest.records()) == first  # a second pass sees the same
    return first


def test_json_lines_with_bom_crlf_and_blank_lines_keep_their_numbers(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf{"text": "one"}\r\n\r\n  \n{"text": "two"}\r\n'
    assert records(tmp_path / "m.jsonl", data) == [
        RawRecord(1, {"text": "one"}),
        RawRecord(4, {"text": "two"}),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "torn',
        b'{"text": NaN}',
        b"[1, 2]",
        b'"text"',
        b"null",
        b'{"text": "\xff"}',
        b"\x00\x01",
        b'{"a":' + b"[" * 100_000,
    ],
)
def test_a_bad_line_is_an_error_with_its_number_and_the_others_are_read(
    tmp_path: Path, line: bytes
) -> None:
    found = records(tmp_path / "m.jsonl", b'{"text": "a"}\n' + line + b'\n{"text": "b"}')
    assert [record.line for record in found] == [1, 2, 3]
    assert found[0].fields == {"text": "a"}
    assert found[1].fields is None
    assert found[1].error
    assert found[2].fields == {"text": "b"}


def test_a_torn_last_line_is_an_error(tmp_path: Path) -> None:
    found = records(tmp_path / "m.jsonl", b'{"text": "a"}\n{"text": "b')
    assert [bool(record.error) for record in found] == [False, True]


def test_a_line_too_long_is_an_error_and_the_next_is_read(tmp_path: Path) -> None:
    long = json.dumps({"text": "x" * 2 * LINE_LIMIT}).encode()
    found = records(tmp_path / "m.jsonl", long + b'\n{"text": "b"}\n')
    assert "MiB" in str(found[0].error)
    assert found[1] == RawRecord(2, {"text": "b"})


@settings(max_examples=200)
@given(lines=st.lists(st.binary(max_size=40).filter(lambda b: b"\n" not in b), max_size=6))
def test_any_bytes_give_one_record_a_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("any") / "m.jsonl"
    found = records(path, b'{"a": 1}\n' + b"\n".join(lines))
    expected = [1] + [n for n, line in enumerate(lines, start=2) if line.strip()]
    assert [record.line for record in found] == expected
    assert all((record.fields is None) == bool(record.error) for record in found)


@settings(max_examples=200)
@given(
    data=st.binary(max_size=80) | st.text(alphabet='a,"\r\n\t ', max_size=80).map(str.encode),
    suffix=st.sampled_from((".csv", ".tsv", ".lst")),
)
def test_any_bytes_in_a_table_give_records_or_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str
) -> None:
    header = b"a|b|c|d\n" if suffix == ".lst" else b"id,text\n"
    found = records(tmp_path_factory.mktemp("any") / f"m{suffix}", header + data)
    assert all((record.fields is None) == bool(record.error) for record in found)
    numbers = [record.line for record in found]
    assert numbers == sorted(set(numbers))


def test_csv_with_quotes_and_newlines_in_a_field(tmp_path: Path) -> None:
    data = '\ufeffid,text,x\r\n1,"Hello, ""you""\r\nthere",\r\n\r\n2,Bye,y\r\n'.encode()
    assert records(tmp_path / "m.csv", data) == [
        RawRecord(2, {"id": "1", "text": 'Hello, "you"\r\nthere', "x": None}),
        RawRecord(5, {"id": "2", "text": "Bye", "x": "y"}),
    ]


def test_csv_rows_with_too_many_or_few_fields_or_bad_bytes_are_errors(tmp_path: Path) -> None:
    found = records(tmp_path / "m.csv", b"id,text\n1\n2,a,b\n3,\xff\n4,ok\n")
    assert ["header has 2" in str(record.error) for record in found] == [True, True, False, False]
    assert found[2].error == "not valid UTF-8"
    assert found[3].fields == {"id": "4", "text": "ok"}


def test_tsv_takes_quotation_marks_literally(tmp_path: Path) -> None:
    found = records(tmp_path / "m.tsv", b'id\ttext\n1\t"Hello\n2\tBye\n')
    assert [record.fields for record in found] == [
        {"id": "1", "text": '"Hello'},
        {"id": "2", "text": "Bye"},
    ]


def test_a_csv_header_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="text twice"):
        records(tmp_path / "m.csv", b"text,text\n1,2\n")


def test_a_csv_header_of_very_many_names_takes_no_time(tmp_path: Path) -> None:
    """Nor any other file of a hundred thousand commas; by pairs it would take minutes."""
    started = time.monotonic()
    found = records(tmp_path / "m.csv", b"," * 100_000 + b"\n1,2\n")
    assert "the header has 100001" in str(found[0].error)
    assert time.monotonic() - started < 5


def test_an_index_column_without_a_name_gets_one(tmp_path: Path) -> None:
    found = records(tmp_path / "m.csv", b",text\n0,a\n")
    assert found[0].fields == {"column_1": "0", "text": "a"}


def test_seed_tts_eval_lists(tmp_path: Path) -> None:
    data = b"u1|hello|wavs/p.wav|say this\r\nu2|a|b\nu3|h|p.wav|t|gt.wav\n"
    found = records(tmp_path / "meta.lst", data)
    assert found[0].fields == {
        "utt": "u1",
        "prompt_text": "hello",
        "prompt_wav": "wavs/p.wav",
        "text": "say this",
    }
    assert "3 fields" in str(found[1].error)
    assert found[2].fields is not None
    assert found[2].fields["infer_wav"] == "gt.wav"


def test_what_is_no_manifest_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        open_manifest(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="is a folder"):
        open_manifest(tmp_path)
    (tmp_path / "m.txt").touch()
    with pytest.raises(UsageError, match=r"unknown kind of manifest '\.txt'.*\.jsonl"):
        open_manifest(tmp_path / "m.txt")
    (tmp_path / "m.jsonl").write_bytes("{}".encode("utf-16"))
    with pytest.raises(UsageError, match="UTF-16"):
        open_manifest(tmp_path / "m.jsonl")


def test_a_manifest_that_changes_between_passes_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"text": "a"}\n')
    manifest = open_manifest(path)
    assert len(list(manifest.records())) == 1
    with path.open("a") as file:
        file.write('{"text": "b"}\n')
    with pytest.raises(RunError, match="changed"):
        list(manifest.records())
    path.unlink()
    with pytest.raises(RunError, match="gone"):
        list(manifest.records())


def test_standard_input_is_spooled_and_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}\n')))
    monkeypatch.chdir(tmp_path)
    manifest = open_manifest("-")
    assert [list(manifest.records()) for _ in range(2)] == [[RawRecord(1, {"text": "a"})]] * 2
    assert manifest.folder == tmp_path
    assert manifest.name == "standard input"
    spooled = manifest.path
    manifest.close()
    assert not spooled.exists()


def test_a_named_pipe_is_spooled_too(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = ["sh", "-c", f'echo \'{{"text": "a"}}\' > {pipe}']
    with subprocess.Popen(command), open_manifest(pipe) as manifest:
        assert list(manifest.records()) == [RawRecord(1, {"text": "a"})]
        assert list(manifest.records()) == [RawRecord(1, {"text": "a"})]
