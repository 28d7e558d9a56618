"""The tables a run leaves: all rows in order in one, rows with audio in the other."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile

from fishcli.errors import RunError
from fishcli.fingerprint import Fingerprinter, ReferenceDigests
from fishcli.ledger import Ledger, Record
from fishcli.manifest import RowDefaults, RowSource, open_manifest
from fishcli.outdir import OutputFolder
from fishcli.plan import Plan, Policy, scan
from fishcli.records import Row
from fishcli.results import BATCH_ROWS, write_results


def fingerprinter() -> Fingerprinter:
    return Fingerprinter("m", "wav", "PCM_16", ReferenceDigests())


def plan_of(folder: Path, *rows: dict[str, Any]) -> Plan:
    path = folder / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    out = OutputFolder(folder / "out")
    out.claim({})
    with Ledger.read(out.path) as ledger:
        source = RowSource(open_manifest(path), RowDefaults())
        return scan(source, ledger, fingerprinter(), Policy(), out)


def finish(folder: Path, plan: Plan, **outcomes: dict[str, Any]) -> None:
    """Give the rows named in ``outcomes`` a record, and a real file if it should have one."""
    out = OutputFolder(folder / "out")
    with Ledger.open(out.path) as ledger:
        for row in plan.rows():
            if row.id in outcomes and isinstance(row, Row):
                record = {"status": "ok", "frames": 2, "duration_s": 0.1, **outcomes[row.id]}
                if record["status"] != "failed":
                    path = out.wav_path(row.id, ".wav")
                    soundfile.write(path, np.zeros(4410, np.float32), 44100)
                    record |= {"file": out.wav_name(row.id, ".wav"), "bytes": path.stat().st_size}
                fingerprint = fingerprinter().fingerprint(row)
                ledger.append([Record(row.id, fingerprint, **record)])


def write(folder: Path, plan: Plan) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    out = OutputFolder(folder / "out")
    with Ledger.read(out.path) as ledger:
        write_results(plan, ledger, fingerprinter(), out)
    lines = (out.path / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    return pq.read_table(out.path / "results.parquet").to_pylist(), [json.loads(x) for x in lines]


def test_every_row_in_manifest_order_with_what_the_ledger_knows(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        {"id": "d", "text": "four"},
        {"id": "a", "text": " one  é"},
        {"id": "bad", "text": "", "top_k": 0},
        {"id": "c", "text": "three", "seed": 9},
        {"id": "b", "text": "two"},
    )
    finish(
        tmp_path,
        plan,
        a={"rtf": 0.5, "ttfp_s": 0.1, "flags": ("x",), "model": "mini", "finish_reason": "stop"},
        c={"status": "capped", "finish_reason": "length"},
        b={"status": "failed", "reason": "no_audio", "message": "nothing", "frames": 0},
    )
    rows, metadata = write(tmp_path, plan)
    assert [(row["id"], row["line"], row["status"]) for row in rows] == [
        ("d", 1, "pending"),
        ("a", 2, "ok"),
        ("bad", 3, "failed"),
        ("c", 4, "capped"),
        ("b", 5, "failed"),
    ]
    pending, ok, bad, capped, failed = rows
    assert (pending["file"], pending["frames"], pending["text"]) == (None, None, "four")
    assert (ok["file"], ok["frames"], ok["duration_s"]) == ("wavs/a.wav", 2, 0.1)
    assert (ok["rtf"], ok["ttfp_s"], ok["flags"], ok["model"]) == (0.5, 0.1, ["x"], "mini")
    assert ok["finish_reason"] == "stop"
    assert len(ok["fingerprint"]) == 32
    assert bad["reason"] == "bad_text"
    assert "line 3: top_k is 0" in bad["message"]
    assert capped["seed"] == 9
    assert (failed["reason"], failed["message"], failed["file"]) == ("no_audio", "nothing", None)
    assert metadata == [
        {
            "file_name": "wavs/a.wav",
            "id": "a",
            "text": "one é",
            "duration": 0.1,
            "status": "ok",
        },
        {
            "file_name": "wavs/c.wav",
            "id": "c",
            "text": "three",
            "duration": 0.1,
            "status": "capped",
        },
    ]


def test_a_record_of_another_text_is_not_this_rows(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"id": "a", "text": "old"})
    finish(tmp_path, plan, a={})
    rows, metadata = write(tmp_path, plan_of(tmp_path, {"id": "a", "text": "new"}))
    assert [(row["status"], row["file"]) for row in rows] == [("pending", None)]
    assert metadata == []


def test_carried_columns_keep_their_types_and_give_way_to_ours(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        {"id": "a", "text": "t", "n": 1, "x": 1, "mixed": 1, "list": [1, {"k": None}], "status": 3},
        {"id": "b", "text": "t", "n": None, "x": 0.5, "mixed": "s", "flag": True, "none": None},
        {"id": "c", "text": "", "n": 3},
        {"id": "d", "text": "t", "file_name": "q.wav", "my_file_name": "r.wav", "audio": "s"},
    )
    finish(tmp_path, plan, a={}, b={}, d={})
    rows, metadata = write(tmp_path, plan)
    schema = pq.read_schema(tmp_path / "out" / "results.parquet")
    names = ("n", "x", "mixed", "list", "manifest_status", "flag", "none")
    kinds = {name: str(schema.field(name).type) for name in names}
    assert list(kinds.values()) == [
        "int64",
        "double",
        "string",
        "string",
        "int64",
        "bool",
        "string",
    ]
    assert [row["n"] for row in rows] == [1, None, 3, None]
    assert [row["x"] for row in rows] == [1.0, 0.5, None, None]
    assert [row["mixed"] for row in rows] == ["1", '"s"', None, None]
    assert rows[0]["list"] == '[1,{"k":null}]'
    assert rows[3]["filename"] == "q.wav"  # not opened by whoever loads the folder
    assert rows[3]["my_filename"] == "r.wav"
    assert rows[3]["manifest_audio"] == "s"
    assert {frozenset(line) for line in metadata} == {frozenset(metadata[0])}
    assert "none" not in metadata[0]
    assert metadata[1]["flag"] is True


def test_more_rows_than_a_batch(tmp_path: Path) -> None:
    count = BATCH_ROWS + 5
    plan = plan_of(tmp_path, *[{"id": f"r{n}", "text": "t"} for n in range(count)])
    rows, _ = write(tmp_path, plan)
    assert [row["id"] for row in rows] == [f"r{n}" for n in range(count)]


def test_a_fault_leaves_the_old_tables(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"id": "a", "text": "t"})
    finish(tmp_path, plan, a={})
    write(tmp_path, plan)
    out = tmp_path / "out"
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    (tmp_path / "m.jsonl").write_text('{"id": "b", "text": "other"}\n')
    with pytest.raises(RunError, match="changed"):
        write(tmp_path, plan)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


# datasets imports torchcodec before it looks at a path; no audio is coded or decoded here.
LOAD = """
import json, sys, types
from datasets import Audio, load_dataset
for name in ("torchcodec", "torchcodec.encoders"):
    sys.modules.setdefault(name, types.SimpleNamespace(AudioEncoder=None))
data = load_dataset("audiofolder", data_dir=sys.argv[1], split="train", cache_dir=sys.argv[2])
data = data.cast_column("audio", Audio(decode=False))
print(json.dumps([{**row, "audio": row["audio"]["path"]} for row in data]))
"""


def test_datasets_loads_the_output_folder_as_it_is(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        {"id": "a", "text": "one", "speaker": "s1", "file_name": "old.wav", "audio": "x"},
        {"id": "b", "text": "two", "speaker": None, "year": 1999},
        {"id": "c", "text": "three", "speaker": "s3"},
        {"id": "bad", "text": ""},
    )
    finish(tmp_path, plan, a={}, b={"status": "capped"}, c={"status": "failed"})
    out = OutputFolder(tmp_path / "out")
    write(tmp_path, plan)
    (out.path / "report.json").write_text("{}")
    (out.path / "report.html").write_text("<html>")
    out.temporary_path(".wav").write_bytes(b"half")
    out.cache.mkdir()
    (out.cache / "clip.wav").write_bytes(b"x")
    command = [sys.executable, "-c", LOAD, str(out.path), str(tmp_path / "cache")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    rows = json.loads(done.stdout.splitlines()[-1])
    assert [(row["id"], row["text"], row["status"]) for row in rows] == [
        ("a", "one", "ok"),
        ("b", "two", "capped"),
    ]
    assert [Path(row["audio"]) for row in rows] == [
        out.path / "wavs" / "a.wav",
        out.path / "wavs" / "b.wav",
    ]
    assert [row["speaker"] for row in rows] == ["s1", None]
    assert rows[0]["filename"] == "old.wav"
    assert rows[1]["year"] == 1999
