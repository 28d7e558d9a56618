"""The production line: preparing thread → engine → decoder thread → writer threads.

The engine runs in the calling thread. Every hand-over is a bounded channel, so the
slowest part sets the pace and nothing grows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fishcli.decoder import DecodedRow, DecoderThread
from fishcli.engine import EngineStats
from fishcli.errors import RowError
from fishcli.fingerprint import Fingerprinter
from fishcli.ledger import Ledger, Record
from fishcli.metrics import Progress, RunMetrics
from fishcli.outdir import OutputFolder
from fishcli.pipeline.build import build_engine
from fishcli.pipeline.interrupt import Interrupted, Interrupts
from fishcli.pipeline.memory import MemoryPlan
from fishcli.pipeline.models import Models
from fishcli.pipeline.outcome import decoded_record, failed_record
from fishcli.pipeline.prepare import Preparer, PreparingThread
from fishcli.pipeline.sources import ClosedLoop, OpenSource, TicketSource
from fishcli.prompt import PromptBuilder
from fishcli.records import Row
from fishcli.voices import VoiceBook
from fishcli.writer import FileFormat, WriteJob, WriterPool

PROGRESS_EVERY_S = 0.25
THREAD_END_S = 5.0  # how long a stopped thread may take to finish its current call


class Observer(Protocol):
    """Who watches a run; called in the main thread."""

    def note(self, line: str) -> None:
        """One line the user should read."""
        ...

    def progress(self, progress: Progress) -> None:
        """A few times a second while rows are generated."""
        ...


@dataclass(frozen=True, slots=True)
class LineSettings:
    """How a line works, beyond what its models and memory plan say."""

    file_format: FileFormat
    isolated: bool = False  # every row computed alone: the deterministic mode
    concurrency: int | None = None  # rows in flight in a closed loop; None: as many as fit
    exact_frames: Mapping[str, int] | None = None  # benches: frames by row id, stops ignored
    finish_by: float | None = None  # time.monotonic() at which to take no more rows
    stop_by: float | None = None  # time.monotonic() at which to drop what is not finished


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Where a run's seconds went; stages overlap, so they don't add up to the wall time."""

    voices_s: float  # encoding references
    voices_encoded: int
    prefill_s: float  # on a GPU: the time to queue it
    codec_s: float  # the decoder thread's busy time


class Line:
    """One engine with its threads, used for one run."""

    def __init__(
        self,
        models: Models,
        memory: MemoryPlan,
        settings: LineSettings,
        out: OutputFolder,
        ledger: Ledger,
        fingerprinter: Fingerprinter,
    ) -> None:
        self._settings = settings
        self._model_name = models.checkpoint.name
        self._exact = settings.exact_frames is not None
        self._frame_s = models.codec.hop_length / models.codec.sample_rate
        self._memory = memory
        self._metrics = RunMetrics()
        self._error: BaseException | None = None
        self._engine = build_engine(models, memory, deterministic=settings.isolated)
        self._voices = VoiceBook(
            models.codec, models.checkpoint.codec_identity, deterministic=settings.isolated
        )
        self._preparer = Preparer(
            PromptBuilder(models.tokenizer, models.checkpoint.config),
            self._voices,
            fingerprinter,
            memory.capacity,
            settings.exact_frames,
        )
        self._writers = WriterPool(
            out, ledger, settings.file_format, self._written, self._writers_failed
        )
        self._decoder = DecoderThread(
            models.codec,
            self._decoded,
            self._failed,
            int16=settings.file_format.subtype == "PCM_16",
            isolated=settings.isolated,
        )

    @property
    def engine_stats(self) -> EngineStats:
        """Counts of the engine."""
        return self._engine.stats

    @property
    def stage_times(self) -> StageTimes:
        """Where the seconds went."""
        return StageTimes(
            voices_s=self._voices.encode_seconds,
            voices_encoded=self._voices.encoded,
            prefill_s=self._engine.stats.prefill_s,
            codec_s=self._decoder.busy_s,
        )

    def run(
        self, rows: Iterable[Row], metrics: RunMetrics, observer: Observer, interrupts: Interrupts
    ) -> None:
        """Turn ``rows`` into files and ledger records.

        Raises the first error of any part, after all that was decoded is on disk, or
        :class:`Interrupted`.
        """
        self._metrics = metrics
        thread = PreparingThread(
            self._preparer, rows, 2 * self._memory.slots, self._row_failed, self._failed
        )
        concurrency = self._settings.concurrency
        self._source: TicketSource = (
            OpenSource(thread) if concurrency is None else ClosedLoop(thread, concurrency)
        )
        thread.start()
        try:
            with interrupts.stoppable():
                self._generate(observer)
            thread.join(THREAD_END_S)
            self._decoder.close()
        except BaseException as error:
            self._failed(error)
            if self._error is not None and self._error is not error:
                raise self._error from None  # what was caught is an echo of the first error
            raise
        finally:
            self._decoder.close(THREAD_END_S)
            self._writers.close()
            self._voices.close()
            observer.progress(metrics.progress(0, self._memory.slots))
        if self._error is not None:
            raise self._error

    def _generate(self, observer: Observer) -> None:
        next_look = 0.0
        for group in self._engine.generate(self._source):
            if group:
                self._decoder.put(group)
            now = time.monotonic()
            if now >= next_look:
                active = self._engine.active
                observer.progress(self._metrics.progress(active, self._memory.slots))
                next_look = now + PROGRESS_EVERY_S
            self._check_time(now)

    def _check_time(self, now: float) -> None:
        finish_by, stop_by = self._settings.finish_by, self._settings.stop_by
        if finish_by is not None and now >= finish_by:
            self._source.drain()
        if stop_by is not None and now >= stop_by:
            raise Interrupted("the time limit is reached")

    def _decoded(self, rows: list[DecodedRow]) -> None:
        """Called in the decoder thread."""
        self._source.done(len(rows))
        for row in rows:
            ticket = self._source.tickets.pop(row.row.id)
            self._metrics.submitted(ticket.submitted)
            record = decoded_record(row, ticket, self._model_name, self._frame_s, exact=self._exact)
            self._writers.put(WriteJob(record, None if record.status == "failed" else row.pcm))

    def _row_failed(self, row: Row, error: RowError) -> None:
        """Called in the preparing thread: the row never reaches the engine."""
        # Without a fingerprint a rerun cannot take the row for done.
        fingerprint = "" if error.passing else self._preparer.fingerprint(row)
        record = failed_record(row, error, fingerprint, self._model_name)
        self._writers.put(WriteJob(record, None))

    def _written(self, records: Sequence[Record]) -> None:
        """Called in a writer thread."""
        self._metrics.add(records)

    def _failed(self, error: BaseException) -> None:
        """Stop generating; what is decoded still goes to disk."""
        if self._error is None:
            self._error = error
        self._source.fail(self._error)
        self._decoder.fail(self._error)

    def _writers_failed(self, error: BaseException) -> None:
        self._failed(error)
        self._writers.fail(error)
