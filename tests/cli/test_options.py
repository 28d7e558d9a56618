"""Values of flags become settings."""

import pytest

from fishcli.cli.options import batch_size, reference_from, seconds, settings_from
from fishcli.errors import UsageError
from fishcli.records import Reference, Sampling
from fishcli.settings import SynthSettings


def test_flags_that_are_not_given_leave_the_defaults():
    assert settings_from(model=None, temperature=None) == SynthSettings.defaults()


def test_given_flags_win_over_the_defaults():
    found = settings_from(model="mini", top_k=5, seed=0, deterministic=True)
    assert found.model == "mini"
    assert found.deterministic
    assert found.sampling == Sampling(0.8, 0.8, 5)


def test_a_wrong_value_is_refused():
    with pytest.raises(UsageError, match="top_k is 0"):
        settings_from(top_k=0)


@pytest.mark.parametrize(("text", "value"), [(None, None), ("auto", None), ("16", 16), ("-3", -3)])
def test_batch_size(text, value):
    assert batch_size(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (None, None),
        ("90", 90.0),
        ("0.5", 0.5),
        ("45s", 45.0),
        ("90m", 5400.0),
        ("1h30m", 5400.0),
        ("2h", 7200.0),
        ("01:30:00", 5400.0),
        ("2:05", 125.0),
    ],
)
def test_time_limit(text, value):
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "1d", "1:2:3:4", "30m1h"])
def test_a_time_limit_that_is_none_says_how_to_write_it(text):
    with pytest.raises(UsageError, match="90m, 1h30m or 01:30:00"):
        seconds(text)


def test_a_batch_size_that_is_none_says_how_to_write_it():
    with pytest.raises(UsageError, match="a number or auto"):
        batch_size("many")


def test_a_reference_takes_its_transcript_from_the_flag_or_the_sidecar(tmp_path):
    clip = tmp_path / "a.wav"
    clip.touch()
    assert reference_from(clip, " Some  text. ", None) == Reference("audio", clip, "Some text.")
    with pytest.raises(UsageError, match="no transcript: give --ref-text, or put it in a.lab"):
        reference_from(clip, None, None)
    (tmp_path / "a.txt").write_text("Beside it.\n")
    assert reference_from(clip, None, None) == Reference("audio", clip, "Beside it.")
    assert reference_from(None, None, clip) == Reference("voice", clip)
    assert reference_from(None, None, None) is None


@pytest.mark.parametrize(
    ("ref", "ref_text", "voice", "message"),
    [
        ("a.wav", None, "a.voice", "--voice excludes --ref"),
        (None, "Text.", None, "--ref-text has no --ref"),
        ("none.wav", "Text.", None, "--ref none.wav: no such file"),
        (None, None, "none.voice", "--voice none.voice: no such file"),
        ("a.wav", "Stop.<|im_end|>", None, "control token"),
    ],
)
def test_a_voice_that_cannot_be_is_refused(tmp_path, monkeypatch, ref, ref_text, voice, message):
    from pathlib import Path

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.wav").touch()
    (tmp_path / "a.voice").touch()
    with pytest.raises(UsageError, match=message):
        reference_from(ref and Path(ref), ref_text, voice and Path(voice))
