"""The report: figures from counted rows, both files written whole, and rebuilt from a ledger."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fishcli.errors import RunError, UsageError
from fishcli.ledger import Ledger, Record
from fishcli.metrics import RunMetrics
from fishcli.outdir import OutputFolder
from fishcli.report import (
    HOW,
    Rows,
    RunReport,
    Spread,
    folder_totals,
    rebuild,
    report_table,
    run_figures,
    write_report,
)

OK = Record(id="a", fingerprint="f", status="ok", duration_s=2.0, frames=43, bytes=100, rtf=0.5)
CAPPED = Record(id="b", fingerprint="f", status="capped", duration_s=3.0, frames=65, bytes=150)
FAILED = Record(id="c", fingerprint="f", status="failed", reason="no_audio")


def report(**more: Any) -> RunReport:
    rows = Rows(read=3, ok=1, capped=1, failed=1, skipped=0)
    values: dict[str, Any] = {
        "rows": rows,
        "exit_code": 3,
        "model": "mini",
        "weights": "trained",
        "device": "cpu",
        "dtype": "float32",
        "audio_s": 5.0,
        "wall_s": 2.0,
    }
    return RunReport(**{**values, **more})


def written(folder: Path, run: RunReport, records: list[Record]) -> dict[str, Any]:
    with Ledger.open(folder) as ledger:
        ledger.append(records)
        write_report(OutputFolder(folder), run, ledger)
    document: dict[str, Any] = json.loads((folder / "report.json").read_bytes())
    return document


def table_text(run: RunReport) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(report_table(run))
    return capture.get()


def test_rows_skipped_after_being_cut_off_explain_the_exit_code() -> None:
    rows = Rows(read=3, ok=0, capped=0, failed=0, skipped=3, skipped_capped=2)
    assert "3 skipped (2 of them capped)" in table_text(report(rows=rows))
    assert "of them" not in table_text(report())


def test_a_spread_of_no_values_is_absent_and_not_zero() -> None:
    assert Spread.of([]) is None
    assert Spread.of([1.0, 2.0, 6.0]) == Spread(3.0, 2.0, pytest.approx(5.6))


def test_totals_count_what_the_ledger_holds() -> None:
    assert folder_totals([OK, CAPPED, FAILED]) == {
        "ok": 1,
        "capped": 1,
        "failed": 1,
        "audio_s": 5.0,
        "frames": 108,
        "bytes": 250,
        "reasons": {"no_audio": 1},
    }


def test_both_files_are_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    document = written(tmp_path, report(), [OK, CAPPED, FAILED])
    assert document["run"]["rows"]["failed"] == 1
    assert document["folder"]["audio_s"] == 5.0
    assert "no_audio" in (tmp_path / "report.html").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"ledger", "report.json", "report.html"}


def test_what_was_not_measured_is_not_in_the_file(tmp_path: Path) -> None:
    run = written(tmp_path, report(), [FAILED])["run"]
    assert not {"rtf", "ttfp_s", "occupancy", "work_s", "stages"} & run.keys()


def test_every_measured_figure_says_how() -> None:
    measured = {"rtf", "ttfp_s", "audio_s", "wall_s", "work_s", "audio_s_per_s", "rows_per_s"}
    assert measured | {"occupancy", "stages"} <= HOW.keys()


def test_a_full_disk_fails_the_run_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()  # cannot be replaced by a file
    with pytest.raises(RunError, match="cannot write the report"):
        written(tmp_path, report(), [OK])


def test_rebuilding_counts_again_and_keeps_what_only_the_run_knew(tmp_path: Path) -> None:
    before = written(tmp_path, report(occupancy=0.5), [OK])
    with Ledger.open(tmp_path) as ledger:
        ledger.append([CAPPED])
    (tmp_path / "report.html").unlink()
    document = rebuild(tmp_path)
    assert document == json.loads((tmp_path / "report.json").read_bytes())
    assert document["run"] == before["run"]
    assert (document["folder"]["ok"], document["folder"]["capped"]) == (1, 1)
    assert "cut off at its budget" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("found", [None, b"", b"[1]", b'{"schema": 1', b"{}"])
def test_rebuilding_does_without_an_earlier_report(tmp_path: Path, found: bytes | None) -> None:
    with Ledger.open(tmp_path) as ledger:
        ledger.append([OK])
    if found is not None:
        (tmp_path / "report.json").write_bytes(found)
    document = rebuild(tmp_path)
    assert "run" not in document
    assert document["folder"]["ok"] == 1
    assert "no figures of a run" in (tmp_path / "report.html").read_text()


def test_a_folder_that_no_run_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no ledger"):
        rebuild(tmp_path)
    assert not list(tmp_path.iterdir())


def test_figures_of_a_run_without_audio_are_absent() -> None:
    metrics = RunMetrics(rows_total=1)
    metrics.add([FAILED])
    assert run_figures(metrics) == {"rtf": None, "ttfp_s": None, "audio_s": 0.0}


def test_throughput_is_over_the_time_from_first_row_to_last_file() -> None:
    metrics = RunMetrics(rows_total=2)
    metrics.submitted(0.0)
    metrics.add([OK, CAPPED])
    metrics.last_row = 10.0
    figures = run_figures(metrics)
    assert figures["work_s"] == 10.0
    assert figures["audio_s_per_s"] == 0.5
    assert figures["rows_per_s"] == 0.2


def test_the_table_says_why_rows_failed_and_why_a_run_ended() -> None:
    text = table_text(report(reasons={"no_audio": 1}, ended="interrupted"))
    assert "3 read: 1 ok, 1 capped, 1 failed, 0 skipped" in text
    assert "failed: no_audio" in text
    assert "interrupted" in text
    assert "RTF" not in text
