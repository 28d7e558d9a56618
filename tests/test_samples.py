"""The samples are what their README says, and fit the shipped model."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

SAMPLES = Path(__file__).parents[1] / "samples"


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (SAMPLES / name).read_text().splitlines()]


def test_the_demo_is_ten_short_english_rows_four_of_them_cloned():
    found = rows("manifest.jsonl")
    assert len(found) == 10
    assert all(row["text"].isascii() and len(row["text"]) < 60 for row in found)
    clips = [row["ref_audio"] for row in found if "ref_audio" in row]
    assert len(clips) == 4
    assert set(clips) == {"voices/a.wav", "voices/b.wav"}


def test_the_multilingual_sample_names_its_languages():
    found = rows("manifest-multilingual.jsonl")
    assert len({row["language"] for row in found}) >= 8
    assert all(row["text"] for row in found)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_clip_is_short_clean_mono(name):
    clip = SAMPLES / "voices" / f"{name}.wav"
    info = soundfile.info(clip)
    assert (info.samplerate, info.channels, info.subtype) == (44100, 1, "PCM_16")
    assert 1.0 < info.duration <= 3.0
    samples, _rate = soundfile.read(clip)
    assert 0.3 < np.abs(samples).max() < 0.9


@pytest.mark.parametrize("name", ["manifest.jsonl", "manifest-multilingual.jsonl"])
def test_transcripts_in_the_manifests_are_those_beside_the_clips(name):
    for row in rows(name):
        if "ref_audio" in row:
            beside = (SAMPLES / row["ref_audio"]).with_suffix(".txt").read_text().strip()
            assert row["ref_text"] == beside
            assert beside in (SAMPLES / "README.md").read_text()
