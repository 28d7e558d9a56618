"""kill -9 of the real command at any instant: what all runs leave together is exact."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import soundfile

from fishcli.ledger import Ledger
from tests.pipeline.conftest import HOP, Runs, report, row, sounds, write_manifest

REPOSITORY = Path(__file__).parents[2]
START_S = 120.0  # for a process to load its libraries on a busy machine
SPREAD_S = 0.25  # a run works on its new rows, and then on its tables, for about so long
ROWS_A_RUN = 12


def start(manifest: Path, out: Path, *flags: str) -> "subprocess.Popen[str]":
    """The command, running; its output is kept."""
    base = [sys.executable, "-m", "fishcli", "synth", str(manifest), "--out", str(out)]
    return subprocess.Popen(
        [*base, "--model", "mini", "--device", "cpu", "--deterministic", *flags],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def lines(out: Path) -> int:
    """Lines of the ledger, -1 before there is one."""
    try:
        return (out / "ledger" / "main.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return -1


def kill_at_random(process: "subprocess.Popen[str]", out: Path, missing: int, draw) -> None:
    """Kill the process a moment after some number of the missing rows was recorded."""
    goal = lines(out) + draw.randint(0, missing)
    deadline = time.monotonic() + START_S
    while process.poll() is None and lines(out) < goal:
        assert time.monotonic() < deadline, "the process does not get on"
        time.sleep(0.001)
    time.sleep(draw.uniform(0, SPREAD_S))
    process.kill()
    output, _ = process.communicate()
    assert process.returncode in {-signal.SIGKILL, 0, 3}, output


def check_what_is_there(out: Path) -> set[str]:
    """Every file under a final name is whole, every record has its file; the ids recorded."""
    for path in (out / "wavs").glob("*"):
        samples, rate = soundfile.read(path, dtype="int16")
        assert (rate, len(samples) % HOP) == (44100, 0)
        assert len(samples) > 0
        assert path.stat().st_size == 44 + 2 * len(samples)
    with Ledger.read(out) as ledger:
        known = list(ledger)
        assert ledger.damaged <= 1  # a torn last line, that the next run starts anew after
    for record in known:
        assert record.status in {"ok", "capped"}
        assert (out / record.file).stat().st_size == record.bytes == 44 + 2 * HOP * record.frames
    return {record.id for record in known}


def check_exact_union(out: Path, ids: list[str]) -> None:
    """Every row once in ledger, table and files; nothing temporary."""
    assert check_what_is_there(out) == set(ids)
    assert set(sounds(out)) == {f"{name}.wav" for name in ids}
    with Ledger.read(out) as ledger:
        assert lines(out) == len(ids) + ledger.damaged  # so no row was done twice
        records = {record.id: record for record in ledger}
    table = pq.read_table(out / "results.parquet").to_pylist()
    assert [each["id"] for each in table] == ids
    for each in table:
        record = records[each["id"]]
        assert (each["status"], each["file"]) == (record.status, record.file)
    told = report(out)["rows"]
    assert told["ok"] + told["capped"] + told["skipped"] == told["read"] == len(ids)
    files = [path for path in out.rglob("*") if path.is_file()]
    expected = {"README.md", "metadata.jsonl", "results.parquet", "report.json", "report.html"}
    expected |= {"run.json", "ledger/main.jsonl", *(f"wavs/{name}.wav" for name in ids)}
    assert {str(path.relative_to(out)) for path in files} == expected


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_kill_9_at_random_instants_loses_doubles_and_breaks_nothing(tmp_path, kills):
    """And with --deterministic the files are those of a run that was not killed."""
    draw = random.Random(kills)
    rows = [row(number, max_new_tokens=1 + number % 5) for number in range(ROWS_A_RUN * kills)]
    manifest = write_manifest(tmp_path / "in" / "rows.jsonl", rows)
    out, done = tmp_path / "out", set()
    for kill in range(1, kills + 1):
        # Each run is shown some rows more, so that none has nothing to do.
        shown = ROWS_A_RUN * kill
        flags = ["--limit", str(shown), "--max-batch-size", str(draw.randint(1, 8))]
        kill_at_random(start(manifest, out, *flags), out, shown - len(done), draw)
        known = check_what_is_there(out)
        assert done <= known, "a record is lost"
        done = known
    last = start(manifest, out)
    output, _ = last.communicate(timeout=START_S)
    assert last.returncode == 3, output  # most rows are capped
    check_exact_union(out, [each["id"] for each in rows])
    calm = Runs(tmp_path / "calm")
    calm(rows, deterministic=True)
    assert sounds(out) == sounds(calm.out)
