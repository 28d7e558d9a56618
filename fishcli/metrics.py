"""What a run did, counted while it runs: the live display and the report read it."""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fishcli.ledger import Record


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a run. ``failed`` and ``skipped`` count from the plan on."""

    rows_total: int
    ok: int
    capped: int
    failed: int
    skipped: int
    audio_s: float
    wall_s: float
    active: int  # slots that hold a row
    slots: int

    @property
    def finished(self) -> int:
        """Rows that have their outcome."""
        return self.ok + self.capped + self.failed + self.skipped


class RunMetrics:
    """Counts finished rows; thread-safe. Holds 16 bytes a row, however many there are."""

    def __init__(self, rows_total: int = 0, failed: int = 0, skipped: int = 0) -> None:
        self._lock = threading.Lock()
        self.rows_total = rows_total
        self.skipped = skipped
        self.status: Counter[str] = Counter(failed=failed)
        self.reasons: Counter[str] = Counter()
        self.audio_s = 0.0
        self.frames = 0
        self.rtf = array("f")
        self.ttfp_s = array("f")
        self.started = time.perf_counter()
        self.first_row: float | None = None  # time.perf_counter() of the first submission
        self.last_row: float | None = None  # … of the last finished file

    def submitted(self, when: float) -> None:
        """A row entered the engine at ``when``."""
        if self.first_row is None or when < self.first_row:
            self.first_row = when

    def add(self, records: Sequence[Record]) -> None:
        """Rows that were just recorded in the ledger."""
        now = time.perf_counter()
        with self._lock:
            for record in records:
                self.status[record.status] += 1
                if record.status == "failed":
                    self.reasons[record.reason] += 1
                self.audio_s += record.duration_s
                self.frames += record.frames
                if record.rtf is not None:
                    self.rtf.append(record.rtf)
                if record.ttfp_s is not None:
                    self.ttfp_s.append(record.ttfp_s)
            self.last_row = now

    @property
    def work_s(self) -> float:
        """Seconds from the first row's submission to the last finished file."""
        if self.first_row is None or self.last_row is None:
            return 0.0
        return self.last_row - self.first_row

    def progress(self, active: int, slots: int) -> Progress:
        """The counts now."""
        with self._lock:
            return Progress(
                rows_total=self.rows_total,
                ok=self.status["ok"],
                capped=self.status["capped"],
                failed=self.status["failed"],
                skipped=self.skipped,
                audio_s=self.audio_s,
                wall_s=time.perf_counter() - self.started,
                active=active,
                slots=slots,
            )
