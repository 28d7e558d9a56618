"""The real command in processes of its own: signalled, two at once, a full disk."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import soundfile

from tests.pipeline.conftest import HOP, report, row, sounds, write_manifest

REPOSITORY = Path(__file__).parents[2]
START_S = 120.0  # for a process to load its libraries on a busy machine
ROWS = [row(number, max_new_tokens=2 + number % 9) for number in range(300, 360)]


def environment(temporary: Path | None = None) -> dict[str, str]:
    place = {} if temporary is None else {"TMPDIR": str(temporary)}
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **place}


def command(manifest: Path | str, out: Path, *flags: str) -> list[str]:
    base = [sys.executable, "-m", "fishcli", "synth", str(manifest), "--out", str(out)]
    return [*base, "--model", "mini", "--device", "cpu", "--deterministic", *flags]


def start(
    manifest: Path | str,
    out: Path,
    *flags: str,
    stdin: int | None = None,
    temporary: Path | None = None,
) -> "subprocess.Popen[str]":
    """The command, running; its output is kept."""
    return subprocess.Popen(
        command(manifest, out, *flags),
        env=environment(temporary),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(process: "subprocess.Popen[str]", condition) -> None:
    """Wait until ``condition()`` holds or the process has ended."""
    deadline = time.monotonic() + START_S
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline, "the process does not get on"
        time.sleep(0.002)


def lines(out: Path) -> int:
    """Records in the ledger, however torn."""
    with contextlib.suppress(FileNotFoundError):
        return (out / "ledger" / "main.jsonl").read_bytes().count(b"\n")
    return 0


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_manifest(tmp_path / "in" / "rows.jsonl", ROWS)


def check_whole(out: Path) -> None:
    """Every file under its final name can be read and has all its samples."""
    for path in (out / "wavs").glob("*"):
        sound = soundfile.info(path)
        assert sound.frames > 0 and sound.frames % HOP == 0
        assert path.stat().st_size == 44 + 2 * sound.frames


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_in_good_order(manifest, tmp_path, number, code):
    out = tmp_path / "out"
    process = start(manifest, out, "--max-batch-size", "1")
    wait_for(process, lambda: lines(out) > 2)
    sent = time.monotonic()
    process.send_signal(number)
    output, _ = process.communicate(timeout=START_S)
    assert time.monotonic() - sent < 10
    assert process.returncode == code, output
    assert f"stopped by {number.name}" in output
    told = report(out)
    assert told["rows"]["pending"] > 0
    assert told["rows"]["ok"] + told["rows"]["capped"] == lines(out) == len(sounds(out))
    check_whole(out)


def test_a_second_signal_ends_it_at_once(tmp_path):
    """Here while the first one waits for a codec call that takes too long."""
    slow = "import fishcli.pipeline.line as line, time\n"
    slow += "line.CALLS_END_S = 100\n"
    slow += "from fishcli.codec import Codec\n"
    slow += "Codec.decode = lambda *_: (print('stuck', flush=True), time.sleep(100))\n"
    slow += "import sys; from fishcli.cli.app import main; sys.argv = ['fishcli', *sys.argv[1:]]\n"
    slow += "main()"
    manifest = write_manifest(tmp_path / "in" / "rows.jsonl", ROWS[:2])
    arguments = command(manifest, tmp_path / "out")[3:]
    process = subprocess.Popen(
        [sys.executable, "-c", slow, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.stdout.readline().strip() not in {"stuck", ""}:
        pass
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert process.poll() is None
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=START_S)
    assert process.returncode == 130
    assert time.monotonic() - sent < 2


def test_a_manifest_that_never_comes_can_be_given_up(tmp_path):
    process = start("-", tmp_path / "out", stdin=subprocess.PIPE, temporary=tmp_path)
    wait_for(process, lambda: list(tmp_path.glob("fishcli-*")))  # where the input is copied to
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    process.communicate()
    assert not (tmp_path / "out").exists()


def test_of_two_runs_at_once_the_second_is_refused_and_changes_nothing(manifest, tmp_path):
    out = tmp_path / "out"
    first = start(manifest, out, "--max-batch-size", "1")
    wait_for(first, lambda: lines(out) > 0)
    first.send_signal(signal.SIGSTOP)
    try:
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
        second = start(manifest, out, "--overwrite", "--seed", "5")
        output, _ = second.communicate(timeout=START_S)
        assert second.returncode == 2, output
        assert "another run is writing" in output
        assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    finally:
        first.send_signal(signal.SIGCONT)
    first.communicate(timeout=START_S)
    assert first.returncode == 3
    assert len(sounds(out)) == len(ROWS)


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of half a megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_stops_the_run_and_the_rest_resumes(manifest, tiny_disk):
    out = tiny_disk / "out"
    process = start(manifest, out, "--max-batch-size", "2")
    output, _ = process.communicate(timeout=START_S)
    assert process.returncode == 1, output
    assert "the disk is full: what was finished is safe" in output
    check_whole(out)
    assert not list((out / ".tmp").iterdir())
    done = len(sounds(out))
    assert done > 0
    subprocess.run(["mount", "-o", "remount,size=20m", str(tiny_disk)], check=True)
    process = start(manifest, out)
    output, _ = process.communicate(timeout=START_S)
    assert process.returncode == 3, output
    assert report(out)["rows"]["skipped"] >= done - 1
    assert len(sounds(out)) == len(ROWS)
