"""What a run came to: its counts, figures and exit code, as one report."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from fishcli.checkpoint import Checkpoint
from fishcli.metrics import RunMetrics
from fishcli.pipeline.interrupt import Interrupted
from fishcli.pipeline.line import Line
from fishcli.pipeline.memory import MemoryPlan
from fishcli.report import Rows, RunReport, host_memory_gb, machine, run_figures
from fishcli.settings import SynthSettings


@dataclass(slots=True)
class Clock:
    """Seconds of the phases of a run, one after the other, for its report."""

    started: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, name: str) -> None:
        """The phase ``name`` ends now."""
        now = time.perf_counter()
        self.phases[name] = now - self._last
        self._last = now

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started


@dataclass(slots=True)
class Outcome:
    """How generating went, as far as it came; filled by the run on its way."""

    skipped_capped: int  # of the rows done before, those that were cut off at their budget
    memory: MemoryPlan | None = None
    line: Line | None = None
    interruption: Interrupted | None = None

    def figures(self, phases: dict[str, float]) -> dict[str, Any]:
        """The fields of the report that only a run with an engine has."""
        if self.line is None or self.memory is None:
            return {"stages": phases}
        occupancy = self.line.engine_stats.occupancy(self.memory.slots)
        stages = {**phases, **asdict(self.line.stage_times)}
        return {"stages": stages, "slots": self.memory.slots, "occupancy": occupancy}


def summarise(
    checkpoint: Checkpoint,
    settings: SynthSettings,
    device: torch.device,
    metrics: RunMetrics,
    outcome: Outcome,
    clock: Clock,
) -> RunReport:
    """The report of a run that has ended, by itself or not."""
    rows = _rows(metrics, outcome.skipped_capped)
    interruption = outcome.interruption
    return RunReport(
        rows=rows,
        exit_code=_exit_code(rows, interruption),
        ended="complete" if interruption is None else str(interruption),
        model=checkpoint.name,
        weights=checkpoint.weights,
        device=device_name(device),
        dtype="bfloat16" if device.type == "cuda" else "float32",
        wall_s=clock.elapsed,
        reasons=dict(metrics.reasons),
        settings=settings.run_wide(),
        machine=machine(torch=str(torch.__version__)),
        peak_memory_gb=peak_memory_gb(device),
        **outcome.figures(clock.phases),
        **run_figures(metrics),
    )


def device_name(device: torch.device) -> str:
    """The GPU's product name, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def peak_memory_gb(device: torch.device) -> dict[str, float]:
    """Largest memory use of this process so far, by where."""
    peaks = {"host": host_memory_gb()}
    if device.type == "cuda":
        peaks["device"] = torch.cuda.max_memory_reserved(device) / 1e9
    return peaks


def _rows(metrics: RunMetrics, skipped_capped: int) -> Rows:
    status = metrics.status
    done = status["ok"] + status["capped"] + status["failed"] + metrics.skipped
    return Rows(
        read=metrics.rows_total,
        ok=status["ok"],
        capped=status["capped"],
        failed=status["failed"],
        skipped=metrics.skipped,
        skipped_capped=skipped_capped,
        pending=metrics.rows_total - done,
    )


def _exit_code(rows: Rows, interruption: Interrupted | None) -> int:
    """0 only if every row of the manifest is ok, whichever run made it so."""
    if interruption is not None:
        return interruption.exit_code
    return 3 if rows.capped or rows.failed or rows.skipped_capped else 0
