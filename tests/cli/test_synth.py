"""``fishcli synth`` from flags to files, with the shipped model."""

import json

import pytest
import soundfile

from tests.cli.conftest import SAMPLES

ROWS = [{"id": "one", "text": "Hi."}, {"id": "two", "text": "Yes."}]


@pytest.fixture
def manifest(tmp_path):
    path = tmp_path / "in" / "m.jsonl"
    path.parent.mkdir()
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return path


def synth(fishcli, manifest, *flags):
    return fishcli("synth", manifest, "--out", "out", "--model", "mini", "--device", "cpu", *flags)


def test_a_manifest_becomes_files_and_a_table(fishcli, manifest, tmp_path):
    result = synth(fishcli, manifest, "--max-new-tokens", 6, "--format", "flac", "--takes", 2)
    assert result.exit_code in {0, 3}, result.output
    assert "mini on cpu" in result.stdout
    assert "4 read" in result.stdout
    assert "what you hear is noise" in result.stderr
    for row_id in ("one-take1", "one-take2", "two-take1", "two-take2"):
        sound = soundfile.info(tmp_path / "out" / "wavs" / f"{row_id}.flac")
        assert sound.samplerate == 44100
        assert sound.frames % 2048 == 0
    assert result.stdout.splitlines()[-3:] == [
        "files: out/wavs",
        "rows: out/results.parquet",
        "report: out/report.html",
    ]
    again = synth(fishcli, manifest, "--max-new-tokens", 6, "--format", "flac", "--takes", 2)
    assert "4 skipped" in again.stdout
    other = synth(fishcli, manifest, "--max-new-tokens", 7, "--format", "flac", "--takes", 2)
    assert other.exit_code == 2
    assert "max_new_tokens was 6, now 7" in other.stderr
    report = fishcli("report", "out")
    assert report.exit_code == 0
    assert report.stdout.startswith("4 files")


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(fishcli, manifest, tmp_path):
    result = synth(fishcli, manifest, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "2 rows: 2 to do, 0 done before" in result.stdout
    assert not (tmp_path / "out").exists()


def test_a_dry_run_shows_bad_rows(fishcli):
    result = synth(fishcli, SAMPLES / "manifest-bad.jsonl", "--dry-run")
    assert result.exit_code == 3
    assert "line 6: top_k is 0: allowed is [1, 4096]" in result.stdout
    assert "2 to do, 0 done before, 9 bad" in result.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max-new-tokens", "0"), "max_new_tokens is 0: allowed is [1, 32768]"),
        (("--max-batch-size", "lots"), "allowed is a number or auto"),
        (("--time-limit", "soon"), "time-limit is 'soon'"),
        (("--ref-text", "Text."), "--ref-text has no --ref"),
        (("--voice-pool", "nowhere"), "nowhere"),
        (("--voice", SAMPLES / "voices" / "a.wav"), "a.wav cannot be read"),
        (("--ref", SAMPLES / "voices" / "a.txt", "--ref-text", "Text."), "a.txt cannot be decoded"),
        (("--layout", "deep"), "layout is 'deep'"),
        (("--retry-failed", "--overwrite"), "use one of them"),
    ],
)
def test_wrong_flags_are_refused_before_any_work(fishcli, manifest, tmp_path, flags, message):
    result = synth(fishcli, manifest, *flags)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out" / "wavs").exists()


def test_a_report_of_no_run_is_refused(fishcli, tmp_path):
    result = fishcli("report", tmp_path)
    assert result.exit_code == 2
    assert "has no ledger" in result.stderr
