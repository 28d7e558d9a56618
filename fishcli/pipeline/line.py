"""The production line: preparing thread → engine → decoder thread → writer threads.

The engine runs in the calling thread. Every hand-over is a bounded channel, so the
slowest part sets the pace and nothing grows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from fishcli.pipeline.interrupt import TIME_LIMIT, Interrupted, Interrupts
from fishcli.pipeline.memory import MemoryPlan
from fishcli.pipeline.models import Models
from fishcli.pipeline.outcome import decoded_record, failed_record
from fishcli.pipeline.prepare import Preparer, PreparingThread
from fishcli.pipeline.sources import ClosedLoop, OpenSource, TicketSource
from fishcli.prompt import PromptBuilder
from fishcli.records import Row
from fishcli.threads import CpuThreads, torch_threads
from fishcli.voices import VoiceBook
from fishcli.writer import FileFormat, WriteJob, WriterPool

PROGRESS_EVERY_S = 0.25
# How long a stopped run waits for the calls that are running, and for files that are being
# written: together well under the ten seconds in which an interrupted run has to end.
CALLS_END_S = 4.0
FILES_END_S = 3.0


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
    cuda_graph: bool = True  # on a GPU: the engine's work captured as CUDA graphs
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
        self._threads = CpuThreads.for_device(models.device, pinned=settings.isolated)
        self._error: BaseException | None = None
        self._error_lock = threading.Lock()
        self._engine = build_engine(
            models, memory, deterministic=settings.isolated, cuda_graph=settings.cuda_graph
        )
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
            threads=self._threads.codec,
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

        Raises the first error of any part, or :class:`Interrupted`; what was decoded
        before is on disk then.
        """
        self._metrics = metrics
        preparer = PreparingThread(
            self._preparer,
            rows,
            2 * self._memory.slots,
            self._row_failed,
            self._failed,
            self._threads.codec,
        )
        concurrency = self._settings.concurrency
        self._source: TicketSource = (
            OpenSource(preparer) if concurrency is None else ClosedLoop(preparer, concurrency)
        )
        with interrupts.handed_to(self._failed), self._deadlines():
            try:
                preparer.start()
                with torch_threads(self._threads.engine):
                    self._generate(observer)
                self._finish(observer)
            except BaseException as error:  # noqa: BLE001 - raised below, unless it is an echo
                self._failed(error)
            self._end(preparer)
        observer.progress(metrics.progress(0, self._memory.slots))
        if self._error is not None:
            raise self._error

    def _generate(self, observer: Observer) -> None:
        next_look = 0.0
        for group in self._engine.generate(self._source):
            if group:
                self._decoder.put(group)
            if self._error is not None:
                raise self._error
            now = time.monotonic()
            if now >= next_look:
                active = self._engine.active
                observer.progress(self._metrics.progress(active, self._memory.slots))
                next_look = now + PROGRESS_EVERY_S

    def _finish(self, observer: Observer) -> None:
        """Wait until all that was generated is decoded and written."""
        for part in (self._decoder, self._writers):
            part.close()
            while not part.join(PROGRESS_EVERY_S) and self._error is None:
                observer.progress(self._metrics.progress(0, self._memory.slots))

    def _end(self, preparer: PreparingThread) -> None:
        """End every thread. After an error decoded rows still go to disk.

        Each ends by itself after its current call. One that takes too long is left behind:
        nothing that it may still do can break a file.
        """
        calls_end = time.monotonic() + CALLS_END_S
        preparer.join(CALLS_END_S)
        self._decoder.join(max(0.0, calls_end - time.monotonic()))
        self._writers.close()
        if isinstance(self._error, Interrupted):
            if not self._writers.join(FILES_END_S):
                self._writers.fail(self._error)
        else:
            self._writers.join()
        self._voices.close()

    @contextmanager
    def _deadlines(self) -> Iterator[None]:
        """Inside the block the time limit takes effect."""
        limits = (
            (self._settings.finish_by, self._source.drain),
            (self._settings.stop_by, lambda: self._failed(Interrupted(TIME_LIMIT))),
        )
        now = time.monotonic()
        timers = [threading.Timer(max(0.0, at - now), act) for at, act in limits if at is not None]
        for timer in timers:
            timer.start()
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()

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
        """Stop generating. Called in any thread; the first error counts, others are its echoes."""
        with self._error_lock:
            if self._error is None:
                self._error = error
        self._source.fail(self._error)
        self._decoder.fail(self._error)

    def _writers_failed(self, error: BaseException) -> None:
        self._failed(error)
        self._writers.fail(error)
