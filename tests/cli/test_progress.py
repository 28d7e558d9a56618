"""The progress line: what it says, and how often."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress as Bar

from fishcli.cli.progress import LiveLine, PlainLines, describe, eta, observer
from fishcli.metrics import Progress


def look(**changes: float) -> Progress:
    values = {
        "rows_total": 100,
        "ok": 20,
        "capped": 0,
        "failed": 0,
        "skipped": 0,
        "audio_s": 50.0,
        "wall_s": 20.0,
        "active": 7,
        "slots": 8,
    }
    return Progress(**{**values, **changes})


def test_the_line_holds_rows_audio_rate_time_left_and_slots():
    line = describe(look(capped=2, failed=1, skipped=10))
    assert line == (
        "rows 33/100 (2 capped, 1 failed, 10 skipped) · audio 50.0 s · 2.5 audio-s/s · "
        "ETA 1:01 · slots 7/8"
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "1:20"),
        ({"ok": 0}, "-"),
        ({"ok": 100}, "0:00"),
        ({"ok": 0, "skipped": 100}, "0:00"),
        ({"wall_s": 7200.0}, "8:00:00"),
        ({"failed": 80}, "0:00"),
    ],
)
def test_time_left(changes, text):
    assert eta(look(**changes)) == text


def test_a_run_that_has_just_begun_has_a_line():
    assert "0.0 audio-s/s" in describe(look(ok=0, audio_s=0.0, wall_s=0.0))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_logs_get_notes_at_once_and_progress_every_ten_seconds():
    out, clock = io.StringIO(), Clock()
    lines = PlainLines(Console(file=out, width=20), 10.0, clock)
    lines.note("[a note] that is wider than the console")
    lines.progress(look(ok=1))
    assert out.getvalue() == "[a note] that is wider than the console\n"
    clock.now = 10.0
    lines.progress(look(ok=2))
    clock.now = 19.0
    lines.progress(look(ok=3))
    assert [line.split(" ·")[0] for line in out.getvalue().splitlines()[1:]] == ["rows 2/100"]
    lines.close()
    lines.close()
    assert [line.split(" ·")[0] for line in out.getvalue().splitlines()[2:]] == ["rows 3/100"]


def test_a_terminal_gets_a_bar_with_notes_above():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with Bar("{task.description}", console=console) as bar:
        line = LiveLine(bar)
        line.note("a note")
        line.progress(look())
    assert "a note" in out.getvalue()
    assert "rows 20/100" in out.getvalue()


def test_standard_error_that_is_no_terminal_gets_plain_lines(capsys):
    with observer() as watching:
        watching.note("hello")
        watching.progress(look())
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["hello", describe(look())]
