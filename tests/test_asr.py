"""Speech recognition is optional, local, and never a surprise."""

import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from fishcli.asr import AsrUnavailableError, find_model, load_transcriber


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch, tmp_path):
    monkeypatch.delenv("FISHCLI_ASR_MODEL", raising=False)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)


class WhisperModel:
    """Stands in for the model: hears what its folder says."""

    def __init__(self, folder, *, local_files_only):
        assert local_files_only
        self.words = (Path(folder) / "words").read_text()

    def transcribe(self, clip, beam_size):
        assert Path(clip).name == "clip.wav"
        assert beam_size == 5
        return iter(SimpleNamespace(text=part) for part in self.words.split("|")), None


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_whisper", SimpleNamespace(WhisperModel=WhisperModel))


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(AsrUnavailableError, match="pip install faster-whisper"):
        load_transcriber()


def test_without_a_model_the_error_says_how_to_name_one(installed):
    with pytest.raises(AsrUnavailableError, match="--asr-model or FISHCLI_ASR_MODEL"):
        load_transcriber()


def test_a_folder_that_is_none_and_a_broken_model_are_named(installed, tmp_path):
    with pytest.raises(AsrUnavailableError, match="nowhere is not a folder"):
        load_transcriber("nowhere")
    with pytest.raises(AsrUnavailableError, match="cannot be loaded"):
        load_transcriber(str(tmp_path))


def test_the_flag_wins_over_the_environment_over_the_cache(monkeypatch, tmp_path):
    folders = [tmp_path / name for name in ("flag", "environment", "cache")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setattr(
        huggingface_hub,
        "try_to_load_from_cache",
        lambda repository, _file: str(folders[2] / "model.bin") if "base" in repository else None,
    )
    assert find_model() == str(folders[2])
    monkeypatch.setenv("FISHCLI_ASR_MODEL", str(folders[1]))
    assert find_model() == str(folders[1])
    assert find_model(str(folders[0])) == str(folders[0])


def test_the_transcript_is_one_line(installed, tmp_path):
    (tmp_path / "words").write_text(" Hello there.| How\n are  you?")
    transcriber = load_transcriber(str(tmp_path))
    assert transcriber.transcribe(tmp_path / "clip.wav") == "Hello there. How are you?"
