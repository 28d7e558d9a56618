"""20,000 rows in one process: do memory, threads and open files stay as they were?

``python scripts/soak_pipeline.py [--rows 20000] [--json FILE]``

Runs the whole pipeline with the shipped model on a CPU over rows of one or two words, four
frames at most, and looks at the process twice a second. Holds if from the end of the warm-up
(the first tenth of the rows) to the end of the work resident memory grows by less than 2 %
(each end told by the median of a tenth of the looks), the largest number of threads and of
open files is not above the warm-up's, and every row is counted, recorded and written once.

All 20,000 rows take some minutes on a quiet machine of two cores. The result kept in
``docs/benchmarks/soak.json`` says how many rows it was made with.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq
import torch

from fishcli.bench.machine import commit, machine
from fishcli.ledger import Ledger
from fishcli.metrics import Progress
from fishcli.pipeline import RunReport, synthesize
from fishcli.settings import SynthSettings

ALLOWED_GROWTH = 0.02
LOOK_EVERY_S = 0.5
WARM_UP = 0.1  # of the rows
MOST_FRAMES = 4
WORDS = ("harbour", "lights", "rain", "seven", "nobody", "quietly", "Monday", "again")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Look:
    """The process at one moment."""

    rows: int  # finished
    resident: int  # bytes
    threads: int
    files: int  # open


class Watch:
    """An observer that knows how many rows are finished, and looks at the process."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self._rows = 0
        self._ended = threading.Event()

    def note(self, line: str) -> None:
        """Show it."""
        print(line, file=sys.stderr, flush=True)

    def progress(self, progress: Progress) -> None:
        """Remember the rows."""
        self._rows = progress.ok + progress.capped + progress.failed

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look at the process again and again inside the block."""
        thread = threading.Thread(target=self._look, name="watch")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
            threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names only
            files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
            self.looks.append(Look(self._rows, resident, threads, files))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="fishcli-soak-") as folder:
        looks, figures = soak(Path(folder), arguments.rows)
    figures |= judge(looks, arguments.rows)
    figures["holds"] = figures["flat"] and figures["exact"]
    print(json.dumps(figures, indent=2))
    if arguments.json:
        document = {
            "commit": commit(),
            "date": time.strftime("%Y-%m-%d"),
            "machine": {**machine(torch.device("cpu")), "load_before": round(load, 2)},
            **figures,
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0 if figures["holds"] else 1


def soak(folder: Path, count: int) -> tuple[list[Look], dict[str, Any]]:
    """Run the rows; what was seen meanwhile, and what the run came to."""
    manifest, out = folder / "in" / "rows.jsonl", folder / "out"
    manifest.parent.mkdir()
    ids = write_manifest(manifest, count)
    settings = replace(
        SynthSettings.defaults(), model="mini", device="cpu", max_new_tokens=MOST_FRAMES
    )
    watch = Watch()
    with watch.looking():
        report = synthesize(manifest, out, settings, watch)
    figures = {
        "rows": count,
        "wall_s": round(report.wall_s, 1),
        "counts": asdict(report.rows),
        "exact": exact(report, out, ids),
    }
    return watch.looks, figures


def write_manifest(path: Path, count: int) -> list[str]:
    """One or two words a row; the ids."""
    draw = random.Random(0)
    ids = [f"row-{number:05}" for number in range(count)]
    with path.open("w", encoding="utf-8") as file:
        for name in ids:
            text = " ".join(draw.choices(WORDS, k=draw.randint(1, 2)))
            file.write(json.dumps({"id": name, "text": text}) + "\n")
    return ids


def exact(report: RunReport, out: Path, ids: list[str]) -> bool:
    """Whether report, ledger, table and files tell of the same rows, each once."""
    rows = report.rows
    with Ledger.read(out) as ledger:
        records = list(ledger)
    lines = (out / "ledger" / "main.jsonl").read_bytes().count(b"\n")
    files = {f"wavs/{file.name}": file.stat().st_size for file in (out / "wavs").iterdir()}
    return (
        rows.read == len(ids) == rows.ok + rows.capped + rows.failed
        and lines == len(records) == len(ids)
        and sum(record.status == "failed" for record in records) == rows.failed
        and {record.file: record.bytes for record in records if record.file} == files
        and pq.read_table(out / "results.parquet")["id"].to_pylist() == ids
    )


def judge(looks: list[Look], count: int) -> dict[str, Any]:
    """The looks during the work: those of the warm-up against those after it."""
    working = [look for look in looks if 0 < look.rows < count]
    warm = [look for look in working if look.rows <= WARM_UP * count]
    after = working[len(warm) :]
    if not warm or len(after) < 10:
        return {"flat": False, "why": "too few rows to tell", "looks": len(working)}
    tenth = max(1, len(after) // 10)
    start = median(look.resident for look in after[:tenth])
    end = median(look.resident for look in after[-tenth:])
    threads = [max(look.threads for look in part) for part in (warm, after)]
    files = [max(look.files for look in part) for part in (warm, after)]
    growth = end / start - 1
    return {
        "flat": growth < ALLOWED_GROWTH and threads[1] <= threads[0] and files[1] <= files[0],
        "allowed_growth": ALLOWED_GROWTH,
        "growth": round(growth, 5),
        "resident_mb_after_warm_up": round(start / 1e6, 1),
        "resident_mb_at_end": round(end / 1e6, 1),
        "most_threads_in_warm_up_and_after": threads,
        "most_open_files_in_warm_up_and_after": files,
        "looks": len(working),
        "resident_mb_by_tenths": tenths(working, count),
    }


def tenths(looks: list[Look], count: int) -> list[float]:
    """Median resident memory in each tenth of the rows, to see where it grew."""
    parts: list[list[int]] = [[] for _ in range(10)]
    for look in looks:
        parts[look.rows * 10 // count].append(look.resident)
    return [round(median(part) / 1e6, 1) for part in parts if part]


if __name__ == "__main__":
    sys.exit(main())
