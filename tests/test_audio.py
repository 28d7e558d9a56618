"""Reference clips in the formats people have, the broken ones too, and files we write."""

import io
import time

import numpy as np
import pytest
import soundfile

from fishcli import audio
from fishcli.audio import check_audio_format, read_audio, write_audio
from fishcli.errors import RowError, UsageError
from fishcli.settings import SUBTYPES

FORMATS = [
    ("mp3", "MP3", "MPEG_LAYER_III", 44100),
    ("flac", "FLAC", "PCM_16", 44100),
    ("ogg", "OGG", "VORBIS", 44100),
    ("opus", "OGG", "OPUS", 48000),
    ("wav", "WAV", "PCM_U8", 8000),
    ("wav", "WAV", "PCM_16", 16000),
    ("wav", "WAV", "PCM_24", 96000),
    ("wav", "WAV", "FLOAT", 22050),
    ("wav", "WAV", "DOUBLE", 44100),
    ("wav", "WAV", "ALAW", 8000),
    ("wav", "WAV", "ULAW", 8000),
    ("aiff", "AIFF", "PCM_16", 44100),
]


def tone(seconds: float, rate: int, hertz: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


def loudest_hertz(samples: np.ndarray, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples))
    return float(spectrum.argmax() * rate / len(samples))


@pytest.fixture
def write(tmp_path):
    def write(samples, rate=44100, name="clip.wav", **options):
        soundfile.write(tmp_path / name, samples, rate, **options)
        return tmp_path / name

    return write


@pytest.mark.parametrize(("suffix", "container", "subtype", "rate"), FORMATS)
@pytest.mark.parametrize("channels", [1, 2])
def test_every_format_is_read_as_mono_at_44100(write, suffix, container, subtype, rate, channels):
    samples = np.repeat(tone(1.0, rate)[:, None], channels, axis=1)
    path = write(samples, rate, f"clip.{suffix}", format=container, subtype=subtype)

    clip = read_audio(path)

    assert clip.dtype == np.float32
    assert clip.ndim == 1
    assert abs(len(clip) / 44100 - 1.0) < 0.06  # MP3 pads
    assert abs(loudest_hertz(clip, 44100) - 440) < 3
    assert abs(np.sqrt(np.mean(clip**2)) - 0.5 / np.sqrt(2)) < 0.03


def test_channels_are_averaged(write):
    stereo = np.stack([np.full(44100, 0.5), np.full(44100, -0.25)], axis=1)
    assert np.allclose(read_audio(write(stereo, subtype="FLOAT")), 0.125)


def test_a_wrong_extension_is_read_by_content(write):
    path = write(tone(1, 44100), name="clip.flac", format="WAV", subtype="PCM_16")
    assert len(read_audio(path)) == 44100


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.2, "0.20 s"), (60.1, "60.10 s"), (95, "95.00 s"), (600, "600.00 s")]
)
def test_length_outside_the_limits_is_told_with_the_limits(write, seconds, told):
    path = write(tone(seconds, 8000), 8000)
    with pytest.raises(RowError) as error:
        read_audio(path)
    assert error.value.reason == "bad_audio"
    assert told in str(error.value)
    assert "0.5 to 60 s" in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("seconds", [0.5, 3, 60])
def test_length_within_the_limits_is_read(write, seconds):
    assert len(read_audio(write(tone(seconds, 44100)))) == seconds * 44100


def test_a_long_clip_is_refused_before_it_is_decoded(write, monkeypatch):
    path = write(tone(61, 8000), 8000)
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *a, **k: pytest.fail("was decoded"))
    with pytest.raises(RowError, match=r"61\.00 s"):
        read_audio(path)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros(0), "is empty"),
        (tone(1, 100), r"lasts 0\.00 s"),
        (np.zeros(44100), "is silent"),
        (np.where(np.arange(44100) == 7, np.nan, 0.1), "NaN or infinite"),
        (np.where(np.arange(44100) == 7, -np.inf, 0.1), "NaN or infinite"),
        (tone(1, 44100) * 32768, r"reaches 16384"),
    ],
    ids=["no samples", "100 samples", "zeros", "NaN", "infinity", "integers as floats"],
)
def test_clips_that_carry_no_voice_are_refused(write, samples, message):
    with pytest.raises(RowError, match=message) as error:
        read_audio(write(samples, subtype="FLOAT"))
    assert (error.value.reason, error.value.passing) == ("bad_audio", False)


@pytest.mark.parametrize("name", ["clip.wav", "clip.mp3", "clip.raw"])
@pytest.mark.parametrize("content", [b"", b"RIFF", b"this is a text file\n" * 100])
def test_what_is_no_sound_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RowError, match=name) as error:
        read_audio(tmp_path / name)
    assert error.value.reason == "bad_audio"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("clip.flac", {}),
        ("clip.mp3", {}),
        ("clip.opus", {"format": "OGG", "subtype": "OPUS"}),
    ],
)
def test_a_torn_file_is_named(write, name, options):
    noise = np.random.default_rng(0).standard_normal(96000) * 0.1
    path = write(noise, 48000, name, **options)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(RowError, match=name):
        read_audio(path)


@pytest.mark.parametrize("name", ["nowhere.wav", "no/folder/clip.wav", "nul\0.wav", "x" * 300])
def test_a_missing_file_may_come_back(tmp_path, name):
    with pytest.raises(RowError) as error:
        read_audio(tmp_path / name)
    assert (error.value.reason, error.value.passing) == ("missing_audio", True)


def test_a_folder_is_no_clip(tmp_path):
    with pytest.raises(RowError, match="is not a file") as error:
        read_audio(tmp_path)
    assert error.value.reason == "bad_audio"


@pytest.mark.parametrize(("rate", "channels"), [(100, 1), (4_000_000, 1), (44100, 17)])
def test_absurd_headers_are_refused(write, rate, channels):
    path = write(np.ones((4000, channels)) * 0.1, rate)
    with pytest.raises(RowError, match="allowed"):
        read_audio(path)


@pytest.mark.parametrize(
    ("container", "subtype"), [(c, s) for c, subtypes in SUBTYPES.items() for s in subtypes]
)
def test_what_is_written_reads_back(tmp_path, container, subtype):
    signal = tone(1, 44100)
    pcm = (signal * 32767).astype(np.int16) if subtype == "PCM_16" else signal.astype(np.float32)
    path = tmp_path / "row.tmp"

    write_audio(path, pcm, 44100, container, subtype)

    info = soundfile.info(path)
    assert (info.format, info.subtype) == (container.upper(), subtype)
    assert (info.samplerate, info.channels, info.frames) == (44100, 1, 44100)
    back, _ = soundfile.read(path, dtype=pcm.dtype.name)
    if subtype in ("PCM_16", "FLOAT"):
        assert np.array_equal(back, pcm)
    else:
        assert np.abs(back - pcm).max() < 2**-22


@pytest.mark.parametrize(
    ("container", "subtype"), [("wav", "FLOAT"), ("wav", "PCM_24"), ("flac", "PCM_24")]
)
def test_the_same_samples_give_the_same_bytes_at_another_time(
    tmp_path, monkeypatch, container, subtype
):
    pcm = tone(0.1, 44100).astype(np.float32)
    write_audio(tmp_path / "a", pcm, 44100, container, subtype)
    time.sleep(1.05)  # libsndfile stamps float files with whole seconds
    write_audio(tmp_path / "b", pcm, 44100, container, subtype)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_nothing_to_say_writes_an_empty_file_of_the_format(tmp_path):
    write_audio(tmp_path / "a", np.zeros(0, np.int16), 44100, "wav", "PCM_16")
    assert soundfile.info(tmp_path / "a").frames == 0


@pytest.mark.parametrize(
    ("container", "subtype"), [("flac", "FLOAT"), ("mp3", "PCM_16"), ("wav", "loud")]
)
def test_formats_that_do_not_fit_are_refused_with_those_that_do(container, subtype):
    with pytest.raises(UsageError, match=r"wav with PCM_16.*flac with PCM_16, PCM_24"):
        check_audio_format(container, subtype)


def test_libsndfile_knows_every_format_that_is_offered():
    for container, subtypes in SUBTYPES.items():
        for subtype in subtypes:
            check_audio_format(container, subtype)
            assert soundfile.check_format(container.upper(), subtype)


def test_a_full_disk_is_told_as_such():
    from pathlib import Path

    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(OSError, match="No space left"):
        write_audio(full, np.zeros(44100, np.int16), 44100, "wav", "PCM_16")


def test_wav_in_memory_is_patched_only_in_its_header():
    buffer = io.BytesIO()
    samples = np.frombuffer(b"PEAKdata" * 1000, dtype=np.int16)
    soundfile.write(buffer, samples, 44100, format="WAV", subtype="PCM_16")
    before = buffer.getvalue()
    assert bytes(audio._without_time_stamp(memoryview(bytearray(before)))) == before
