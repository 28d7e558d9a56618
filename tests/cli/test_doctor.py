"""``fishcli doctor``: a line a part, and a broken model is told part by part."""

import shutil

import pytest

from fishcli.doctor.wer import word_errors
from tests.conftest import TOY


def test_the_machine_is_described_line_by_line(fishcli):
    result = fishcli("doctor")
    assert result.exit_code == 0, result.output
    subjects = [line[6:].split(":")[0] for line in result.stdout.splitlines()]
    for subject in ("python", "torch", "triton", "kernels", "libsndfile", "mini", "disk"):
        assert subject in subjects
    assert "fishaudio/s2-pro: not on disk" in result.stdout


def test_a_whole_model_passes_every_check(fishcli, tmp_path):
    result = fishcli("doctor", "--model", "mini", "--device", "cpu", "--full", "--out", "spoken")
    assert result.exit_code == 0, result.output
    assert "FAIL" not in result.stdout
    for line in ("slow logits: bfloat16 is", "codec in bfloat16: signal", "sentence-5: "):
        assert line in result.stdout
    assert len(list((tmp_path / "spoken" / "wavs").iterdir())) == 5


def test_a_broken_part_fails_by_name(fishcli, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(TOY, folder)
    weights = folder / "model-00002-of-00002.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    result = fishcli("doctor", "--model", folder, "--device", "cpu", "--full")
    assert result.exit_code == 1
    verdicts = {line[6:].split(":")[0]: line[:4] for line in result.stdout.splitlines()}
    assert verdicts["transformers"] == "FAIL"
    assert verdicts["codec"] == "  ok"
    assert "sentence-1" not in verdicts


def test_a_missing_model_fails(fishcli, tmp_path):
    (tmp_path / "empty").mkdir()
    result = fishcli("doctor", "--model", tmp_path / "empty")
    assert result.exit_code == 1
    assert "FAIL  files: " in result.stdout
    assert fishcli("doctor", "--full").exit_code == 2


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [
        ("It's easy to tell.", "its easy, to TELL", 1),
        ("It’s easy to tell.", "it's easy to tell", 0),
        ("one two three", "one three", 1),
        ("one two three", "one two two three", 1),
        ("one two three", "", 3),
        ("one two", "three four five", 3),
    ],
)
def test_word_errors(said, heard, errors):
    assert word_errors(said, heard)[0] == errors
