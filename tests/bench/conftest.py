"""One small model, loaded once, and one whole bench of it."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from fishcli.bench import BenchSettings, run_bench
from fishcli.checkpoint import resolve
from fishcli.pipeline import line
from fishcli.pipeline.models import Models, load_models
from fishcli.pipeline.sources import ClosedLoop
from tests.conftest import CPU

CONCURRENCY, SLOTS, ROWS = 2, 4, 4


@dataclass
class Watched:
    """A bench's document, its notes, and how many rows were in flight after each change."""

    document: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=lambda: [0])
    saved: list[dict[str, Any]] = field(default_factory=list)

    def note(self, line: str) -> None:
        self.notes.append(line)

    def progress(self, progress: Any) -> None:
        pass


@pytest.fixture(scope="session")
def models() -> Models:
    return load_models(resolve("mini", CPU), CPU)


@pytest.fixture(scope="session")
def bench() -> Watched:
    """Everything a CPU can measure, with more slots than rows in flight."""
    watched, lock = Watched(), threading.Lock()

    def change(rows: int) -> None:
        with lock:
            watched.in_flight.append(watched.in_flight[-1] + rows)

    class WatchedLoop(ClosedLoop):
        def take(self, *, wait):
            request = super().take(wait=wait)
            if request is not None:
                change(1)
            return request

        def done(self, count):
            change(-count)
            super().done(count)

    settings = BenchSettings(
        model="random:mini",
        device="cpu",
        concurrency=(CONCURRENCY,),
        frames=(1,),
        ablate=True,
        max_batch_size=SLOTS,
        rows=ROWS,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line, "ClosedLoop", WatchedLoop)
        watched.document = run_bench(
            settings, watched, lambda document: watched.saved.append(copy.deepcopy(document))
        )
    return watched
