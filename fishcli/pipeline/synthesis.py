"""A whole run: resolve, plan, load, generate, results, report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from fishcli.checkpoint import Checkpoint, resolve
from fishcli.errors import UsageError
from fishcli.estimate import FRAME_RATE
from fishcli.fingerprint import Fingerprinter, ReferenceDigests
from fishcli.ledger import Ledger
from fishcli.manifest import (
    STDIN,
    Manifest,
    RowDefaults,
    RowSource,
    open_manifest,
    read_voice_pool,
)
from fishcli.metrics import RunMetrics
from fishcli.outdir import OutputFolder
from fishcli.pipeline.interrupt import TIME_LIMIT, Interrupted, Interrupts
from fishcli.pipeline.line import Line, LineSettings, Observer
from fishcli.pipeline.memory import memory_for
from fishcli.pipeline.models import Models, load_models, pick_device, pick_ops
from fishcli.pipeline.summary import Clock, Outcome, summarise
from fishcli.plan import Plan, Policy, scan
from fishcli.report import RunReport, write_report
from fishcli.results import write_results
from fishcli.settings import SynthSettings
from fishcli.writer import FileFormat

# A time limit takes no new rows in its last tenth (a minute at most), and drops what is
# still running in the last fiftieth (ten seconds at most), so that files and report fit.
FINISH_SHARE, FINISH_MAX_S = 0.1, 60.0
STOP_SHARE, STOP_MAX_S = 0.02, 10.0


def synthesize(
    manifest: str | Path, out: Path, settings: SynthSettings, observer: Observer
) -> RunReport:
    """Turn a manifest into files, a ledger, results and a report in ``out``.

    Rows that fail are counted, not raised. Raises :class:`FishError`: ``UsageError`` before
    any work, ``RunError`` when the run itself failed, ``Interrupted`` if it was stopped
    before there was a plan; later an interruption is told by the report.
    """
    with Interrupts().installed() as interrupts:
        return _Run(out, settings, observer, interrupts).go(manifest)


def row_source(manifest: Manifest, settings: SynthSettings) -> RowSource:
    """The rows of a manifest under a run's settings."""
    pool = () if settings.voice_pool is None else read_voice_pool(settings.voice_pool)
    defaults = RowDefaults(
        sampling=settings.sampling,
        max_new_tokens=settings.max_new_tokens,
        run_seed=settings.seed,
        reference=settings.reference,
        voice_pool=pool,
        takes=settings.takes,
    )
    return RowSource(manifest, defaults)


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """What is settled before the models are loaded."""

    checkpoint: Checkpoint
    plan: Plan
    ledger: Ledger
    fingerprinter: Fingerprinter


class _Run:
    """The phases of one run, in order; each leaves what the next needs."""

    def __init__(
        self, out: Path, settings: SynthSettings, observer: Observer, interrupts: Interrupts
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._interrupts = interrupts
        self._clock = Clock()
        self._begin = time.monotonic()
        self._out = OutputFolder(out, settings.layout)
        self._device = pick_device(settings.device)

    def go(self, path: str | Path) -> RunReport:
        with self._interrupts.stoppable():
            checkpoint = resolve(self._settings.model, self._device)
            for notice in checkpoint.notices:
                self._observer.note(notice)
            manifest = open_manifest(path, spool_dir=self._out.cache / "clips")
        with manifest:
            if str(path) != STDIN:
                self._out.refuse_input(Path(path))
            source = row_source(manifest, self._settings)
            settings = {"model": checkpoint.identity, **self._settings.run_wide()}
            overwrite = self._settings.overwrite
            self._out.check(settings, overwrite=overwrite)
            with Ledger.open(self._out.path) as ledger:  # the lock: nobody else works here now
                with self._interrupts.stoppable():
                    job = self._plan(checkpoint, source, ledger)
                self._tell(job, str(path))
                self._out.claim(settings, overwrite=overwrite)
                return self._work(job)

    def _plan(self, checkpoint: Checkpoint, source: RowSource, ledger: Ledger) -> _Job:
        settings = self._settings
        self._out.remove_leftovers()
        digests = ReferenceDigests(self._out.cache / "references.jsonl")
        fingerprinter = Fingerprinter(
            checkpoint.identity, settings.audio_format, settings.subtype, digests
        )
        policy = Policy(settings.retry_failed, settings.overwrite, settings.limit)
        plan = scan(source, ledger, fingerprinter, policy, self._out)
        self._clock.lap("plan_s")
        return _Job(checkpoint, plan, ledger, fingerprinter)

    def _tell(self, job: _Job, path: str) -> None:
        plan, note = job.plan, self._observer.note
        for problem in plan.problems:
            note(problem)
        if plan.problem_count > len(plan.problems):
            note(f"… and {plan.problem_count - len(plan.problems)} more problems")
        if job.ledger.damaged:
            note(f"{job.ledger.damaged} damaged ledger lines: their rows are redone")
        if plan.valid == 0:
            raise UsageError(f"{path}: no valid row in {plan.counts.rows}")
        minutes = plan.estimated_frames / FRAME_RATE / 60
        note(
            f"plan: {plan.counts.rows} rows, {plan.counts.todo} to do (about {minutes:.1f} "
            f"minutes of audio, {plan.distinct_references} distinct references), "
            f"{plan.counts.skipped} done before, {plan.counts.failed} failed"
        )

    def _work(self, job: _Job) -> RunReport:
        counts = job.plan.counts
        # Rows that a policy leaves alone count as skipped: they are not this run's work.
        metrics = RunMetrics(counts.rows, counts.failed, counts.skipped + counts.left)
        metrics.reasons.update(job.plan.failed_reasons)
        outcome = Outcome(job.plan.skipped_capped)
        try:
            if counts.todo:
                self._generate(job, metrics, outcome)
            with self._interrupts.stoppable():
                write_results(job.plan, job.ledger, job.fingerprinter, self._out)
            self._clock.lap("results_s")
        except Interrupted as interruption:
            outcome.interruption = interruption
        report = summarise(
            job.checkpoint, self._settings, self._device, metrics, outcome, self._clock
        )
        write_report(self._out, report, job.ledger)
        return report

    def _generate(self, job: _Job, metrics: RunMetrics, outcome: Outcome) -> None:
        with self._interrupts.stoppable():
            models = load_models(
                job.checkpoint, self._device, pick_ops(self._device, self._observer.note)
            )
        self._clock.lap("load_s")
        memory = memory_for(job.plan, models, self._settings.max_batch_size)
        outcome.memory = memory
        self._observer.note(str(memory))
        if memory.note:
            self._observer.note(memory.note)
        line = Line(
            models, memory, self._line_settings(models), self._out, job.ledger, job.fingerprinter
        )
        outcome.line = line
        rows = (row for window in job.plan.windows(self._settings.plan_window) for row in window)
        try:
            line.run(rows, metrics, self._observer, self._interrupts)
        finally:
            self._clock.lap("generate_s")
        if sum(metrics.status.values()) + metrics.skipped < metrics.rows_total:
            raise Interrupted(TIME_LIMIT)

    def _line_settings(self, models: Models) -> LineSettings:
        settings, finish_by, stop_by = self._settings, None, None
        if (limit := settings.time_limit_s) is not None:
            finish_by = self._begin + limit - min(FINISH_SHARE * limit, FINISH_MAX_S)
            stop_by = self._begin + limit - min(STOP_SHARE * limit, STOP_MAX_S)
        return LineSettings(
            FileFormat(models.codec.sample_rate, settings.audio_format, settings.subtype),
            isolated=settings.deterministic,
            cuda_graph=settings.cuda_graph,
            finish_by=finish_by,
            stop_by=stop_by,
        )
