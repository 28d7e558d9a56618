"""What a run looks like while it goes on: a live line on a terminal, plain lines elsewhere.

Both go to standard error; standard output is for results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from fishcli.metrics import Progress
    from fishcli.pipeline import Observer

PLAIN_INTERVAL_S = 10.0


def describe(progress: Progress) -> str:
    """One line: rows by outcome, audio made, its rate, time left, slots in use."""
    outcomes = [
        f"{count} {name}"
        for name, count in (
            ("capped", progress.capped),
            ("failed", progress.failed),
            ("skipped", progress.skipped),
        )
        if count
    ]
    rows = f"rows {progress.finished}/{progress.rows_total}"
    return " · ".join(
        [
            rows + (f" ({', '.join(outcomes)})" if outcomes else ""),
            f"audio {progress.audio_s:.1f} s",
            f"{progress.audio_s / progress.wall_s if progress.wall_s > 0 else 0.0:.1f} audio-s/s",
            f"ETA {eta(progress)}",
            f"slots {progress.active}/{progress.slots}",
        ]
    )


def eta(progress: Progress) -> str:
    """Time left if rows go on as they went, as 1:02:03; ``-`` before the first row."""
    done = progress.ok + progress.capped  # bad rows cost no time
    left = progress.rows_total - progress.finished
    if not done and left:
        return "-"
    seconds = round(progress.wall_s * left / done) if left else 0
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class PlainLines:
    """For logs: notes at once, progress at most every ten seconds and once at the end."""

    def __init__(
        self, console: Console, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._interval_s = interval_s
        self._clock = clock
        self._next = clock() + interval_s
        self._unsaid = ""

    def note(self, line: str) -> None:
        """Show ``line`` now."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def progress(self, progress: Progress) -> None:
        """Show how far the run is, if the last line is old enough."""
        self._unsaid = describe(progress)
        if self._clock() >= self._next:
            self.close()

    def close(self) -> None:
        """Show what has not been shown yet."""
        if self._unsaid:
            self.note(self._unsaid)
        self._unsaid = ""
        self._next = self._clock() + self._interval_s


class LiveLine:
    """For people: a bar with the same figures, redrawn in place, notes above it."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, start=False, visible=False)

    def note(self, line: str) -> None:
        """Show ``line`` above the bar."""
        self._bar.console.print(line, markup=False, highlight=False)

    def progress(self, progress: Progress) -> None:
        """Redraw the bar."""
        self._bar.update(
            self._task,
            total=progress.rows_total,
            completed=progress.finished,
            description=describe(progress),
            visible=True,
        )


@contextmanager
def observer() -> Iterator[Observer]:
    """The observer that suits standard error, for the length of a run."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
        with Bar(*columns, console=console) as bar:
            yield LiveLine(bar)
    else:
        plain = PlainLines(console, PLAIN_INTERVAL_S)
        try:
            yield plain
        finally:
            plain.close()
