"""Counting a run while it goes on, from several threads."""

import threading
import time

import pytest

from fishcli.ledger import Record
from fishcli.metrics import RunMetrics


def record(number, status="ok", **fields):
    audio = {"frames": 20, "duration_s": 2.0, "rtf": 0.5, "ttfp_s": 1.0}
    return Record(f"r{number}", "print", status, **(audio if status != "failed" else {}), **fields)


def test_counts_add_up():
    metrics = RunMetrics(rows_total=10, failed=1, skipped=2)
    metrics.add([record(1), record(2, "capped"), record(3, "failed", reason="no_audio")])
    now = metrics.progress(active=3, slots=4)
    assert (now.ok, now.capped, now.failed, now.skipped, now.finished) == (1, 1, 2, 2, 6)
    assert (now.rows_total, now.active, now.slots) == (10, 3, 4)
    assert (metrics.audio_s, metrics.frames) == (4.0, 40)
    assert metrics.reasons == {"no_audio": 1}
    assert list(metrics.rtf) == [0.5, 0.5]  # rows without audio have no real-time factor


def test_work_lasts_from_the_first_row_to_the_last_file():
    metrics = RunMetrics()
    assert metrics.work_s == 0.0
    start = time.perf_counter() - 10
    metrics.submitted(start + 1)
    assert metrics.work_s == 0.0
    metrics.submitted(start)
    metrics.submitted(start + 2)
    metrics.add([record(1)])
    assert metrics.work_s == pytest.approx(10, abs=0.5)


def test_threads_lose_no_row():
    metrics = RunMetrics(4000)
    threads = [
        threading.Thread(target=lambda: [metrics.add([record(n)]) for n in range(1000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.progress(0, 1).finished == 4000
    assert len(metrics.rtf) == 4000
