"""``fishcli bench``: ceiling, parts, then the pipeline at each concurrency."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fishcli.bench.parts import bytes_per_frame, codec_figures, frame_figures, read_bandwidth
from fishcli.bench.rows import BenchRows, ReferenceKind, longest_text, make_rows
from fishcli.bench.trace import trace_engine
from fishcli.checkpoint import resolve
from fishcli.errors import UsageError
from fishcli.estimate import FRAME_RATE, frame_budget_of
from fishcli.fingerprint import Fingerprinter, ReferenceDigests
from fishcli.ledger import Ledger
from fishcli.metrics import RunMetrics
from fishcli.outdir import OutputFolder
from fishcli.pipeline.interrupt import Interrupts
from fishcli.pipeline.line import Line, LineSettings, Observer
from fishcli.pipeline.memory import Need, plan_memory
from fishcli.pipeline.models import Models, load_models, pick_device, pick_ops
from fishcli.pipeline.synthesis import device_name
from fishcli.records import MAX_NEW_TOKENS_LIMIT, check_range
from fishcli.report import Spread, host_memory_gb
from fishcli.writer import FileFormat

SCHEMA = 1
ROWS_PER_SLOT = 8  # rows are at least so many times the concurrency
PROMPT_OVERHEAD = 120  # positions of a prompt beyond its text, generously
REFERENCE_POSITIONS = 400  # frames and transcript of a bench's reference


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What to measure. ``max_batch_size`` None: as many slots as rows in flight."""

    model: str
    device: str = "auto"
    concurrency: tuple[int, ...] = (1, 8, 16)
    frames: tuple[int, ...] = ()  # batch sizes at which the engine's frame is timed alone
    trace: tuple[int, ...] = ()  # batch sizes at which the engine loop is profiled
    max_batch_size: int | None = None
    rows: int | None = None  # None: ROWS_PER_SLOT times the concurrency
    reference: ReferenceKind = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.concurrency or self.frames or self.trace):
            raise UsageError("nothing to measure: name a concurrency, or batch sizes of frames")
        for name in ("concurrency", "frames", "trace"):
            for number in getattr(self, name):
                check_range(name, number, 1, 1024)
        if self.reference not in ("none", "shared", "unique"):
            raise UsageError(f"reference is {self.reference!r}: allowed is none, shared or unique")
        if self.rows is not None:
            check_range("rows", self.rows, 1, 10**6)


def run_bench(settings: BenchSettings, observer: Observer) -> dict[str, Any]:
    """Measure, and return the document that is written as JSON. Times in seconds."""
    device = pick_device(settings.device)
    checkpoint = resolve(settings.model, device)
    for notice in checkpoint.notices:
        observer.note(notice)
    bandwidth = read_bandwidth(device)
    models = load_models(checkpoint, device, pick_ops(device, observer.note))
    load_memory = _device_memory_gb(device)
    frame_bytes = bytes_per_frame(models)
    observer.note(
        f"ceiling: memory reads at {bandwidth:.3f} TB/s, a frame at batch 1 reads "
        f"{frame_bytes / 1e9:.2f} GB of weights, so RTF ≥ "
        f"{frame_bytes / bandwidth / 1e12 * FRAME_RATE:.3f}"
    )
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "model": checkpoint.name,
        "weights": checkpoint.weights,
        "dtype": str(models.dtype).removeprefix("torch."),
        "settings": asdict(settings),
        "machine": machine(device),
        "ceiling": {"read_tb_s": bandwidth, "bytes_per_frame": frame_bytes},
        "codec": codec_figures(models),
        "frames": [],
        "traces": [],
        "runs": [],
    }
    for slots in settings.frames:
        observer.note(f"one frame at batch {slots}")
        document["frames"].append({"slots": slots} | frame_figures(models, slots))
    for slots in settings.trace:
        observer.note(f"tracing the engine at batch {slots}")
        document["traces"].append({"slots": slots} | trace_engine(models, slots))
    for concurrency in settings.concurrency:
        run = _measure(models, settings, concurrency, observer)
        memory = {} if load_memory is None else {"load_memory_gb": load_memory}
        document["runs"].append(run | memory)
    return document


def machine(device: torch.device) -> dict[str, Any]:
    """What figures depend on."""
    try:
        import triton  # noqa: PLC0415 - not on every platform

        triton_version = str(triton.__version__)
    except ImportError:
        triton_version = "absent"
    return {
        "gpu": device_name(device) if device.type == "cuda" else "none",
        "gpus": 1 if device.type == "cuda" else 0,
        "cpu_cores": len(os.sched_getaffinity(0)),
        "torch": str(torch.__version__),
        "triton": triton_version,
        "python": platform.python_version(),
    }


def commit() -> str:
    """The commit of the checkout this runs from, with ``+`` if it is changed; else empty."""
    head, changed = _git("rev-parse", "--short=12", "HEAD"), _git("status", "--porcelain", "-uno")
    return head + ("+" if changed else "")


def _git(*command: str) -> str:
    here = str(Path(__file__).parent)
    try:
        done = subprocess.run(
            ["git", "-C", here, *command], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


def _measure(
    models: Models, settings: BenchSettings, concurrency: int, observer: Observer
) -> dict[str, Any]:
    slots = settings.max_batch_size or concurrency
    count = settings.rows or ROWS_PER_SLOT * concurrency
    overhead = PROMPT_OVERHEAD + (0 if settings.reference == "none" else REFERENCE_POSITIONS)
    longest = longest_text(models.checkpoint.config.slow.max_seq_len, overhead)
    figures: dict[str, Any] = {"concurrency": concurrency, "rows": count}
    with tempfile.TemporaryDirectory(prefix="fishcli-bench-") as name:
        folder = Path(name)
        rows = make_rows(count, longest, settings.reference, folder, settings.seed)
        warm = make_rows(min(count, 2 * slots), longest, settings.reference, folder, 10**6)
        observer.note(f"concurrency {concurrency}: warming up")
        _run(models, warm, slots, concurrency, folder / "warm", observer)
        _reset_peak(models.device)
        observer.note(f"concurrency {concurrency}: {count} rows")
        line, metrics, wall_s = _run(models, rows, slots, concurrency, folder / "run", observer)
        figures |= _row_figures(metrics, wall_s)
    figures["max_batch_size"] = slots
    figures["reference"] = settings.reference
    figures["occupancy"] = line.engine_stats.occupancy(slots)
    figures["stages"] = asdict(line.stage_times)
    figures["peak_memory_gb"] = _peak_gb(models.device)
    del line
    return figures | frame_figures(models, slots)


def _run(
    models: Models, rows: BenchRows, slots: int, concurrency: int, folder: Path, observer: Observer
) -> tuple[Line, RunMetrics, float]:
    random = models.checkpoint.weights == "random"
    longest_text_bytes = max(len(row.text.encode()) for row in rows.rows)
    has_references = rows.rows[0].reference is not None
    budget = rows.longest if random else frame_budget_of(rows.longest, MAX_NEW_TOKENS_LIMIT)
    need = Need(PROMPT_OVERHEAD + longest_text_bytes, budget, has_references)
    checkpoint, device = models.checkpoint, models.device
    memory = plan_memory(checkpoint.config, models.weight_bytes, need, slots, device, models.dtype)
    if memory.note:
        observer.note(memory.note)
    out = OutputFolder(folder)
    fingerprinter = Fingerprinter(checkpoint.identity, "wav", "PCM_16", ReferenceDigests())
    line_settings = LineSettings(
        FileFormat(models.codec.sample_rate, "wav", "PCM_16"),
        concurrency=concurrency,
        exact_frames=rows.frames if random else None,
    )
    metrics = RunMetrics(len(rows.rows))
    with Interrupts().installed() as interrupts, Ledger.open(folder) as ledger:
        line = Line(models, memory, line_settings, out, ledger, fingerprinter)
        started = time.perf_counter()
        line.run(rows.rows, metrics, observer, interrupts)
        wall_s = time.perf_counter() - started
    failed = metrics.status["failed"]
    if failed:
        raise UsageError(f"{failed} rows of the bench failed: {dict(metrics.reasons)}")
    return line, metrics, wall_s


def _row_figures(metrics: RunMetrics, wall_s: float) -> dict[str, Any]:
    rtf, ttfp = Spread.of(metrics.rtf), Spread.of(metrics.ttfp_s)
    assert rtf is not None and ttfp is not None
    return {
        "wall_s": wall_s,
        "audio_s": metrics.audio_s,
        "rtf_mean": rtf.mean,
        "rtf_median": rtf.median,
        "rtf_p95": rtf.p95,
        "ttfp_mean_s": ttfp.mean,
        "ttfp_p95_s": ttfp.p95,
        "requests_per_s": len(metrics.rtf) / wall_s,
        "audio_s_per_s": metrics.audio_s / wall_s,
        "row_rtf": [round(value, 4) for value in metrics.rtf],
        "row_ttfp_s": [round(value, 4) for value in metrics.ttfp_s],
    }


def _device_memory_gb(device: torch.device) -> float | None:
    return torch.cuda.memory_allocated(device) / 1e9 if device.type == "cuda" else None


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_gb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 1e9
    return host_memory_gb()
