"""What a look at a whole run needs of its rows: distributions, and the first odd ones.

Its size depends on neither the number of rows nor their length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fishcli.ledger import Record
from fishcli.plots import Density, Histogram

ODD_KEPT = 100
BATCH_ROWS = 8192


@dataclass(slots=True)
class Overview:
    """Rows seen so far."""

    rtf: Histogram = field(default_factory=Histogram)
    ttfp_s: Histogram = field(default_factory=Histogram)
    duration_s: Histogram = field(default_factory=Histogram)
    by_text: Density = field(default_factory=Density)  # bytes of text, seconds of audio
    odd: list[Record] = field(default_factory=list)  # the first capped, failed or flagged rows
    odd_count: int = 0

    def seeing(self, records: Iterable[Record]) -> Iterator[Record]:
        """``records`` as they are, each taken into account as it passes."""
        for record in records:
            self._add(record)
            yield record

    def read_texts(self, results: Path) -> None:
        """Compare text and audio in ``results.parquet``, which knows the texts.

        A file that is missing or damaged is passed over: an overview says what it can.
        """
        try:
            with pq.ParquetFile(results) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=["text", "duration_s"]):
                    self._add_texts(batch)
        except (OSError, pa.ArrowException):
            return

    def _add(self, record: Record) -> None:
        self.rtf.add(record.rtf)
        self.ttfp_s.add(record.ttfp_s)
        self.duration_s.add(record.duration_s)
        if record.status != "ok" or record.flags:
            self.odd_count += 1
            if len(self.odd) < ODD_KEPT:
                self.odd.append(record)

    def _add_texts(self, batch: pa.RecordBatch) -> None:
        sizes = pc.binary_length(batch["text"].cast(pa.binary())).fill_null(0)
        seconds = batch["duration_s"].fill_null(0.0)  # no audio, nothing to compare
        self.by_text.add(np.asarray(sizes, dtype=np.float64), np.asarray(seconds, dtype=np.float64))
