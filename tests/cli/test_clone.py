"""``fishcli clone``: transcript, texts, and a voice to keep."""

import shutil
import subprocess
import sys

import pytest

from fishcli.cli import clone as clone_module
from tests.cli.conftest import SAMPLES

QUICK = ("--model", "mini", "--device", "cpu", "--max-new-tokens", "4")


@pytest.fixture
def ref(tmp_path):
    """A clip in the working folder, without its transcript."""
    return shutil.copy(SAMPLES / "voices" / "a.wav", tmp_path / "ref.wav")


def test_without_a_transcript_the_three_remedies_are_named(fishcli, ref, monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_whisper", None)  # as if not installed
    result = fishcli("clone", "--ref", "ref.wav")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    for remedy in ("--ref-text", "ref.txt", "pip install faster-whisper"):
        assert remedy in result.stderr


def test_exactly_as_typed_it_says_a_sample_sentence(fishcli, ref, tmp_path, monkeypatch):
    (tmp_path / "ref.txt").write_text("The harbour lights came on one by one.")
    monkeypatch.setattr(clone_module.sys, "stdin", open("/dev/null"))  # noqa: SIM115, PTH123
    result = fishcli("clone", "--ref", "ref.wav", *QUICK)
    assert result.exit_code in {0, 3}, result.output
    (file,) = (tmp_path / "out" / "clone" / "wavs").iterdir()
    assert result.stdout.splitlines()[-1] == f"out/clone/wavs/{file.name}"


def test_texts_come_from_flags_or_from_a_pipe(tmp_path):
    assert clone_module._texts(["A.", "B."]) == ["A.", "B."]
    code = "from fishcli.cli.clone import _texts; print(_texts(None))"
    for given, wanted in ((b"One.\n\n Two. \n", "['One.', 'Two.']"), (b"\n", "['Hello, this")):
        done = subprocess.run(
            [sys.executable, "-c", code], input=given, capture_output=True, check=True
        )
        assert done.stdout.decode().startswith(wanted)


@pytest.mark.parametrize(
    ("name", "message"),
    [("ref.jsonl", "ref.jsonl cannot be decoded"), ("me.voice", "goes to synth --voice")],
)
def test_a_file_that_is_no_clip_is_refused_before_any_work(fishcli, tmp_path, name, message):
    (tmp_path / name).write_text("{}")
    result = fishcli("clone", "--ref", name, "--ref-text", "Some words.", "--text", "Hi.", *QUICK)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_kept_voice_serves_clones_and_manifests(fishcli, ref, tmp_path):
    transcript = ("--ref-text", "The harbour lights came on one by one.")
    first = fishcli(
        "clone", "--ref", ref, *transcript, "--text", "Hi.", "--save-voice", "v/me", *QUICK
    )
    assert first.exit_code in {0, 3}, first.output
    assert (tmp_path / "v" / "me.voice").is_file()
    assert f"voice: {tmp_path / 'v' / 'me.voice'}" in first.stdout.splitlines()
    (tmp_path / "m.jsonl").write_text('{"id": "x", "text": "Yes.", "voice": "v/me.voice"}\n')
    second = fishcli("synth", "m.jsonl", "--out", "o", *QUICK)
    assert second.exit_code in {0, 3}, second.output
    assert (tmp_path / "o" / "wavs" / "x.wav").is_file()


def test_a_second_clone_may_choose_other_sampling_and_text(fishcli, ref, tmp_path):
    common = ("clone", "--ref", ref, "--ref-text", "Some words.", *QUICK)
    first = fishcli(*common, "--text", "Hi.")
    second = fishcli(*common, "--text", "Yes.", "--temperature", 0.3, "--seed", 4)
    assert {first.exit_code, second.exit_code} <= {0, 3}, second.output
    assert len(list((tmp_path / "out" / "clone" / "wavs").iterdir())) == 2


def test_speech_recognition_writes_the_transcript_where_it_is_installed(fishcli, ref, monkeypatch):
    class Heard:
        def __init__(self, words):
            self.words = words

        def transcribe(self, _clip):
            return self.words

    monkeypatch.setattr(clone_module, "load_transcriber", lambda _model: Heard("Some words."))
    result = fishcli("clone", "--ref", ref, "--text", "Hi.", *QUICK)
    assert result.exit_code in {0, 3}, result.output
    assert "heard in" in result.stderr
    monkeypatch.setattr(clone_module, "load_transcriber", lambda _model: Heard(""))
    silent = fishcli("clone", "--ref", ref, "--text", "Hi.", *QUICK)
    assert silent.exit_code == 2
    assert "no speech was recognised" in silent.stderr
