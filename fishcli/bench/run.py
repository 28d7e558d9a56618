"""``fishcli bench``: ceiling, parts, then the pipeline at each concurrency."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from fishcli.bench.ablate_engine import engine_ablations
from fishcli.bench.ablate_pipeline import pipeline_ablations
from fishcli.bench.machine import commit, machine
from fishcli.bench.parts import (
    bytes_per_frame,
    codec_figures,
    frame_figures,
    prefill_figures,
    read_bandwidth,
)
from fishcli.bench.rows import BenchRows, ReferenceKind, longest_text, make_rows
from fishcli.bench.trace import trace_engine
from fishcli.checkpoint import resolve
from fishcli.errors import UsageError
from fishcli.estimate import FRAME_RATE
from fishcli.fingerprint import Fingerprinter, ReferenceDigests
from fishcli.ledger import Ledger
from fishcli.metrics import RunMetrics
from fishcli.outdir import OutputFolder
from fishcli.pipeline.interrupt import Interrupts
from fishcli.pipeline.line import Line, LineSettings, Observer
from fishcli.pipeline.memory import Need, plan_memory
from fishcli.pipeline.models import Models, load_models, pick_device, pick_ops
from fishcli.records import check_range
from fishcli.report import Spread, host_memory_gb
from fishcli.settings import MAX_BATCH_SIZE_LIMIT
from fishcli.writer import FileFormat

Save = Callable[[dict[str, Any]], None]
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
    ablate: bool = False  # whether every optimisation is also measured without it
    cuda_graph: bool = True  # on a GPU: the engine's work captured as CUDA graphs
    max_batch_size: int | None = None
    rows: int | None = None  # None: ROWS_PER_SLOT times the concurrency
    reference: ReferenceKind = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.concurrency or self.frames or self.trace or self.ablate):
            raise UsageError("nothing to measure: name a concurrency, or batch sizes of frames")
        for name in ("concurrency", "frames", "trace"):
            for number in getattr(self, name):
                check_range(name, number, 1, MAX_BATCH_SIZE_LIMIT)
        if self.max_batch_size is not None:
            check_range("max_batch_size", self.max_batch_size, 1, MAX_BATCH_SIZE_LIMIT)
        if self.reference not in ("none", "shared", "unique"):
            raise UsageError(f"reference is {self.reference!r}: allowed is none, shared or unique")
        if self.rows is not None:
            check_range("rows", self.rows, 1, 10**6)

    def slots(self, concurrency: int) -> int:
        """Slots of the engine with so many rows in flight."""
        return self.max_batch_size or concurrency


def run_bench(
    settings: BenchSettings, observer: Observer, save: Save = lambda _: None
) -> dict[str, Any]:
    """Measure, and return the document that is written as JSON. Times in seconds.

    ``save`` gets the document after every part, so that a bench that is cut short leaves
    what it had measured.

    What is not measured is absent. A run has ``device_idle`` and ``host_waits_per_frame``
    where the engine was also traced at its batch size: profiling the run itself would slow it.
    """
    device = pick_device(settings.device)
    if settings.trace and device.type != "cuda":
        raise UsageError(f"trace needs a CUDA device, not {device}")
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
        "ablations": [],
        "runs": [],
    }
    if load_memory is not None:
        document["load_memory_gb"] = load_memory
    save(document)
    for _ in _parts(models, settings, document, observer):
        save(document)
    for concurrency in settings.concurrency:
        run = _measure(models, settings, concurrency, observer)
        document["runs"].append(run | _known(document, run["max_batch_size"]))
        save(document)
    return document


def _parts(
    models: Models, settings: BenchSettings, document: dict[str, Any], observer: Observer
) -> Iterator[None]:
    """What the engine does alone, into ``document``; yields after each part."""
    graphs = settings.cuda_graph
    if settings.frames:
        document["prefill"] = prefill_figures(models)
        yield
    for slots in settings.frames:
        observer.note(f"one frame at batch {slots}")
        figures = frame_figures(models, slots, cuda_graph=graphs)
        document["frames"].append({"slots": slots} | figures)
        yield
    for slots in settings.trace:
        observer.note(f"tracing the engine at batch {slots}")
        traced = trace_engine(models, slots, cuda_graph=graphs)
        document["traces"].append({"slots": slots} | traced)
        yield
    if settings.ablate:
        for ablation in chain(engine_ablations(models), pipeline_ablations(models)):
            observer.note(f"measured without and with: {ablation.name}, {ablation.measured}")
            document["ablations"].append(asdict(ablation))
            yield


def _known(document: dict[str, Any], slots: int) -> dict[str, float]:
    """Figures of a run that were measured beside it."""
    known = {key: document[key] for key in ("load_memory_gb",) if key in document}
    for traced in document["traces"]:
        if traced["slots"] == slots:
            known |= {key: traced[key] for key in ("device_idle", "host_waits_per_frame")}
    return known


def _measure(
    models: Models, settings: BenchSettings, concurrency: int, observer: Observer
) -> dict[str, Any]:
    slots = settings.slots(concurrency)
    count = settings.rows or ROWS_PER_SLOT * concurrency
    overhead = PROMPT_OVERHEAD + (0 if settings.reference == "none" else REFERENCE_POSITIONS)
    longest = longest_text(models.checkpoint.config.slow.max_seq_len, overhead)
    figures: dict[str, Any] = {"concurrency": concurrency, "rows": count}
    with tempfile.TemporaryDirectory(prefix="fishcli-bench-") as name:
        folder = Path(name)
        warm = make_rows(min(count, 2 * slots), longest, settings.reference, folder, 10**6)
        observer.note(f"concurrency {concurrency}: warming up")
        _run(models, settings, warm, concurrency, folder / "warm", observer)
        _reset_peak(models.device)
        # Not before: their clips take the names of those that were for warming up.
        rows = make_rows(count, longest, settings.reference, folder, settings.seed)
        observer.note(f"concurrency {concurrency}: {count} rows")
        line, metrics, wall_s = _run(models, settings, rows, concurrency, folder / "run", observer)
        figures |= _row_figures(metrics, wall_s)
    figures["max_batch_size"] = slots
    figures["reference"] = settings.reference
    figures["occupancy"] = line.engine_stats.occupancy(slots)
    figures["stages"] = asdict(line.stage_times)
    figures["peak_memory_gb"] = _peak_gb(models.device)
    del line  # its cache must not stand in the way of the next one
    return figures | frame_figures(models, slots, cuda_graph=settings.cuda_graph)


def _run(
    models: Models,
    settings: BenchSettings,
    rows: BenchRows,
    concurrency: int,
    folder: Path,
    observer: Observer,
) -> tuple[Line, RunMetrics, float]:
    """One pass of ``rows`` through a whole line, into files; the last result is its seconds."""
    random = models.checkpoint.weights == "random"
    longest_text_bytes = max(len(row.text.encode()) for row in rows.rows)
    has_references = rows.rows[0].reference is not None
    budget = rows.largest_budget(exact=random)
    need = Need(PROMPT_OVERHEAD + longest_text_bytes, budget, has_references)
    checkpoint, slots = models.checkpoint, settings.slots(concurrency)
    memory = plan_memory(
        checkpoint.config, models.weight_bytes, need, slots, models.device, models.dtype
    )
    if memory.note:
        observer.note(memory.note)
    out = OutputFolder(folder)
    fingerprinter = Fingerprinter(checkpoint.identity, "wav", "PCM_16", ReferenceDigests())
    line_settings = LineSettings(
        FileFormat(models.codec.sample_rate, "wav", "PCM_16"),
        concurrency=concurrency,
        cuda_graph=settings.cuda_graph,
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
