"""The report of a run: ``report.json``, ``report.html``, and the same figures for the terminal.

Every figure says how it was measured; what was not measured is absent.
"""

from __future__ import annotations

import contextlib
import platform
import resource
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.table import Table

from fishcli import __version__
from fishcli.errors import RunError, UsageError
from fishcli.ledger import Ledger, Record
from fishcli.metrics import RunMetrics
from fishcli.outdir import OutputFolder, atomic_write
from fishcli.overview import Overview
from fishcli.page import render

SCHEMA = 1
REPORT_FILE = "report.json"
PAGE_FILE = "report.html"

HOW = {
    "audio_s": "frames of this run's files times the length of a frame",
    "wall_s": "the whole command, from reading the manifest to this report",
    "rtf": "per row: seconds from entering a slot (in a closed loop: from submission) to its "
    "decoded audio, over seconds of audio",
    "ttfp_s": "per row: seconds from entering a slot (in a closed loop: from submission) to its "
    "first decoded audio; a row is decoded whole, so this is all of its audio",
    "work_s": "from the first row's start to the last recorded file; planning, loading and "
    "results not counted",
    "audio_s_per_s": "audio_s over work_s, ramp and drain included",
    "rows_per_s": "rows with audio over work_s",
    "occupancy": "mean share of slots that held a row, over all frames",
    "stages": "busy seconds of each part; the parts overlap",
    "peak_memory": "device: torch's largest reserved memory; host: largest resident set",
}


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, median and 95th percentile."""

    mean: float
    median: float
    p95: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None if there are no values: absent, not zero."""
        array = np.fromiter(values, dtype=np.float64)
        if array.size == 0:
            return None
        median, p95 = np.percentile(array, [50, 95])
        return cls(float(array.mean()), float(median), float(p95))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows by outcome. ``read`` is their sum, plus what an ended run did not come to."""

    read: int
    ok: int
    capped: int
    failed: int
    skipped: int
    pending: int = 0
    skipped_capped: int = 0  # of the skipped, those that were cut off when they were made


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run; fields that were not measured are None and left out of the file."""

    rows: Rows
    exit_code: int
    model: str
    weights: str  # random: the figures are speed only
    device: str
    dtype: str
    audio_s: float
    wall_s: float  # of the whole command
    ended: str = "complete"  # or why it did not come to its end
    reasons: Mapping[str, int] = field(default_factory=dict)  # of failed rows
    work_s: float | None = None
    rtf: Spread | None = None
    ttfp_s: Spread | None = None
    audio_s_per_s: float | None = None
    rows_per_s: float | None = None
    occupancy: float | None = None
    slots: int | None = None
    stages: Mapping[str, float] = field(default_factory=dict)
    peak_memory_gb: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """What report.json holds for the run."""
        return {name: value for name, value in asdict(self).items() if value not in (None, {})}


def run_figures(metrics: RunMetrics) -> dict[str, Any]:
    """The fields of :class:`RunReport` that follow from the counted rows."""
    work_s = metrics.work_s
    with_audio = metrics.status["ok"] + metrics.status["capped"]
    figures: dict[str, Any] = {
        "rtf": Spread.of(metrics.rtf),
        "ttfp_s": Spread.of(metrics.ttfp_s),
        "audio_s": metrics.audio_s,
    }
    if work_s > 0 and with_audio:
        figures["work_s"] = work_s
        figures["audio_s_per_s"] = metrics.audio_s / work_s
        figures["rows_per_s"] = with_audio / work_s
    return figures


def host_memory_gb() -> float:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def machine(**more: str) -> dict[str, str]:
    """Versions that figures depend on; ``more`` adds torch's and the device's."""
    return {"fishcli": __version__, "python": platform.python_version(), **more}


def folder_totals(records: Iterable[Record]) -> dict[str, Any]:
    """What the ledger holds, whichever run made it."""
    status: dict[str, int] = {"ok": 0, "capped": 0, "failed": 0}
    reasons: dict[str, int] = {}
    audio_s, frames, size = 0.0, 0, 0
    for record in records:
        status[record.status] += 1
        if record.status == "failed":
            reasons[record.reason] = reasons.get(record.reason, 0) + 1
        audio_s += record.duration_s
        frames += record.frames
        size += record.bytes
    totals: dict[str, Any] = {**status, "audio_s": audio_s, "frames": frames, "bytes": size}
    return {**totals, "reasons": reasons}


def write_report(out: OutputFolder, run: RunReport, ledger: Ledger) -> None:
    """Write ``report.json`` and ``report.html``: the last run, and the totals of the folder.

    Raises :class:`RunError` if the disk refuses.
    """
    document = {"schema": SCHEMA, "date": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    _write(out.path, {**document, "run": run.to_dict(), "how": HOW}, ledger)


def rebuild(path: Path) -> dict[str, Any]:
    """Count the folder's ledger again and write both files anew; returns the document.

    The figures of the last run, which the ledger cannot know, are kept as they are.
    Raises :class:`UsageError` for a folder that no run has written.
    """
    if not (path / "ledger").is_dir():
        raise UsageError(f"{path} has no ledger: it is not the output folder of a run")
    document: dict[str, Any] = {"schema": SCHEMA, "how": HOW}
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        document |= msgspec.json.decode((path / REPORT_FILE).read_bytes(), type=dict[str, Any])
    with Ledger.read(path) as ledger:
        return _write(path, document, ledger)


def _write(folder: Path, document: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Add the folder's totals to ``document`` and write it in both forms."""
    overview = Overview()
    document["folder"] = folder_totals(overview.seeing(ledger))
    overview.read_texts(folder / "results.parquet")
    data = msgspec.json.format(msgspec.json.encode(document), indent=2)
    try:
        atomic_write(folder / REPORT_FILE, data)
        atomic_write(folder / PAGE_FILE, render(document, overview).encode())
    except OSError as error:
        raise RunError(f"cannot write the report: {error.strerror or error}") from error
    return document


def report_table(run: RunReport) -> Table:
    """The figures of a run as a table for the terminal."""
    table = Table(show_header=False, title=f"{run.model} on {run.device} ({run.dtype})")
    table.add_column(style="bold")
    table.add_column(justify="right")
    rows = run.rows
    outcome = f"{rows.ok} ok, {rows.capped} capped, {rows.failed} failed, {rows.skipped} skipped"
    if rows.skipped_capped:
        outcome += f" ({rows.skipped_capped} of them capped)"
    pending = f", {rows.pending} not done" if rows.pending else ""
    table.add_row("rows", f"{rows.read} read: {outcome}{pending}")
    for reason, count in sorted(run.reasons.items()):
        table.add_row(f"  failed: {reason}", str(count))
    table.add_row("audio", f"{run.audio_s:.1f} s")
    table.add_row("wall time", f"{run.wall_s:.1f} s")
    if run.audio_s_per_s is not None and run.rows_per_s is not None:
        table.add_row(
            "throughput", f"{run.audio_s_per_s:.2f} audio-s/s, {run.rows_per_s:.2f} rows/s"
        )
    for name, spread in (("RTF", run.rtf), ("TTFP, s", run.ttfp_s)):
        if spread is not None:
            figures = f"{spread.mean:.3f} / {spread.median:.3f} / {spread.p95:.3f}"
            table.add_row(f"{name} (mean / median / p95)", figures)
    if run.occupancy is not None:
        table.add_row("batch occupancy", f"{run.occupancy:.0%} of {run.slots} slots")
    for where, size in run.peak_memory_gb.items():
        table.add_row(f"peak memory, {where}", f"{size:.2f} GB")
    if run.weights == "random":
        table.add_row("weights", "random: speed only")
    if run.ended != "complete":
        table.add_row("ended", run.ended)
    return table
