"""Whole runs in this process, with the real toy checkpoint, real threads and real files."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fishcli.metrics import Progress
from fishcli.pipeline import RunReport, synthesize
from fishcli.settings import SynthSettings

HOP = 2048
# Ids whose rows the toy checkpoint ends by itself within 25 frames, the short ones first.
STOPPING = (34, 0, 24, 5, 1, 16, 33, 37, 7, 9, 23, 25)
CALM_S = 5.0  # far longer than any thread needs to end


def row(number: int, **fields: Any) -> dict[str, Any]:
    """A short row; its id decides its seed."""
    return {"id": f"r{number}", "text": f"Row {number}.", **fields}


def short_rows(count: int) -> list[dict[str, Any]]:
    """``count`` rows of a few frames each, all of which end ``ok``."""
    return [row(number) for number in STOPPING[:count]]


def long_rows(count: int) -> list[dict[str, Any]]:
    """``count`` rows that take their time."""
    return [row(number) for number in range(100, 100 + count)]


def write_manifest(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """``rows`` as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def sounds(out: Path) -> dict[str, bytes]:
    """Every file below ``wavs`` by its name."""
    return {file.name: file.read_bytes() for file in (out / "wavs").rglob("*.*")}


def records(out: Path) -> list[dict[str, Any]]:
    """All lines of the ledger."""
    lines = (out / "ledger" / "main.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def results(out: Path) -> list[dict[str, Any]]:
    """The rows of results.parquet."""
    table: list[dict[str, Any]] = pq.read_table(out / "results.parquet").to_pylist()
    return table


def report(out: Path) -> dict[str, Any]:
    """The run as report.json tells it."""
    document: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return document["run"]  # type: ignore[no-any-return]


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and modification time of everything in ``folder``."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in files
    }


@dataclass
class Watcher:
    """An observer that remembers."""

    notes: list[str] = field(default_factory=list)
    last: Progress | None = None

    def note(self, line: str) -> None:
        self.notes.append(line)

    def progress(self, progress: Progress) -> None:
        self.last = progress


@dataclass
class Runs:
    """Runs manifests into ``folder/out`` or another folder beside it."""

    folder: Path
    watcher: Watcher = field(default_factory=Watcher)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def __call__(
        self, rows: Iterable[dict[str, Any]], out: str = "out", **settings: Any
    ) -> RunReport:
        manifest = write_manifest(self.folder / "in" / "rows.jsonl", rows)
        chosen = replace(SynthSettings.defaults(), model="mini", device="cpu", **settings)
        return synthesize(manifest, self.folder / out, chosen, self.watcher)


@pytest.fixture
def run(tmp_path: Path) -> Iterable[Runs]:
    """Runs, and after each test the certainty that no thread of a run is left."""
    before = set(threading.enumerate())
    yield Runs(tmp_path)
    for thread in set(threading.enumerate()) - before:
        thread.join(CALM_S)
        assert not thread.is_alive(), f"the thread {thread.name} is left"


@pytest.fixture
def changed_codes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``changed_codes(change)``: the engine hands over ``change(row)`` for each of its rows."""
    from fishcli.pipeline import line

    def use(change: Callable[[Any], Any]) -> None:
        build = line.build_engine

        class Changed:
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                self._engine = build(*args, **kwargs)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._engine, name)

            def generate(self, source: Any) -> Iterable[list[Any]]:
                for group in self._engine.generate(source):
                    yield [change(row) for row in group]

        monkeypatch.setattr(line, "build_engine", Changed)

    return use
