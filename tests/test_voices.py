"""Voice files, and the book that makes every clip's codes once."""

import contextlib

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import save_file

from fishcli.codec import load_codec
from fishcli.errors import RowError
from fishcli.records import Reference
from fishcli.voices import Voice, VoiceBook, load_voice, save_voice
from tests.conftest import CPU, TOY, golden_tensors

IDENTITY = "codec-a"


@pytest.fixture(scope="module")
def codec():
    return load_codec(TOY, CPU)


@pytest.fixture
def open_book(codec):
    with contextlib.ExitStack() as stack:

        def open_book(**options):
            return stack.enter_context(contextlib.closing(VoiceBook(codec, IDENTITY, **options)))

        yield open_book


@pytest.fixture
def clip(tmp_path):
    """Writes a sound file and returns the reference to it."""

    def clip(name, seconds, text="what is said", seed=0):
        samples = np.random.default_rng(seed).standard_normal(int(seconds * 44100)) * 0.1
        soundfile.write(tmp_path / name, samples, 44100)
        return Reference("audio", tmp_path / name, text)

    return clip


@pytest.fixture
def voice():
    codes = torch.randint(0, 64, (10, 30), generator=torch.Generator().manual_seed(0))
    return Voice(codes.int(), "Grüße, 你好")


def test_a_voice_file_reads_back(tmp_path, voice):
    save_voice(tmp_path / "a.voice", voice, IDENTITY)
    for identity in (IDENTITY, None):
        read = load_voice(tmp_path / "a.voice", identity)
        assert torch.equal(read.codes, voice.codes)
        assert (read.codes.dtype, read.text) == (torch.int32, voice.text)
    assert [file.name for file in tmp_path.iterdir()] == ["a.voice"]


def test_a_voice_that_cannot_be_written_leaves_the_old_one(tmp_path, voice, monkeypatch):
    path = tmp_path / "a.voice"
    save_voice(path, voice, IDENTITY)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_voice(path, Voice(voice.codes, "other"), IDENTITY)
    assert load_voice(path, IDENTITY).text == voice.text
    assert [file.name for file in tmp_path.iterdir()] == ["a.voice"]


def test_codes_of_another_codec_are_refused(tmp_path, voice):
    save_voice(tmp_path / "a.voice", voice, "codec-b")
    with pytest.raises(RowError, match="another codec") as error:
        load_voice(tmp_path / "a.voice", IDENTITY)
    assert error.value.reason == "bad_voice"


@pytest.mark.parametrize("content", [b"", b"RIFF....WAVE", b"\xff" * 1000, b"{}" * 50])
def test_what_is_no_voice_file_is_named(tmp_path, content):
    (tmp_path / "a.voice").write_bytes(content)
    with pytest.raises(RowError, match=r"a\.voice") as error:
        load_voice(tmp_path / "a.voice", IDENTITY)
    assert error.value.reason == "bad_voice"


def test_a_torn_voice_file_is_named(tmp_path, voice):
    path = tmp_path / "a.voice"
    save_voice(path, voice, IDENTITY)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RowError, match=r"a\.voice cannot be read"):
        load_voice(path, IDENTITY)


GOOD = {"format": "fishcli-voice-1", "text": "hello", "codec": IDENTITY}


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"codes": torch.zeros(10, 3).int()}, None, "not a voice file"),
        ({"codes": torch.zeros(10, 3).int()}, GOOD | {"format": "other"}, "not a voice file"),
        ({"weights": torch.zeros(10, 3).int()}, GOOD, "not a voice file"),
        ({"codes": torch.zeros(10, 3)}, GOOD, "float32"),
        ({"codes": torch.zeros(1, 10, 3).int()}, GOOD, r"\[1, 10, 3\]"),
        ({"codes": torch.zeros(10, 0).int()}, GOOD, r"\[10, 0\]"),
    ],
)
def test_foreign_tensors_are_refused(tmp_path, tensors, metadata, message):
    save_file(tensors, tmp_path / "a.voice", metadata)
    with pytest.raises(RowError, match=message):
        load_voice(tmp_path / "a.voice", IDENTITY)


def test_a_missing_voice_file_may_come_back(tmp_path):
    with pytest.raises(RowError) as error:
        load_voice(tmp_path / "a.voice", IDENTITY)
    assert (error.value.reason, error.value.passing) == ("missing_voice", True)


def test_a_clip_becomes_its_codes_with_the_rows_transcript(open_book, codec, clip):
    reference = clip("a.wav", 1.0, "good morning")
    (made,) = open_book().lookup([reference])
    samples, _ = soundfile.read(reference.path, dtype="float32")
    assert made.text == "good morning"
    assert torch.equal(made.codes, codec.encode(torch.from_numpy(samples)[None])[0])
    assert made.codes.device == CPU


def test_clips_encoded_together_get_the_golden_codes(open_book, tmp_path):
    golden = golden_tensors("codec")
    references = []
    for i in (3, 1, 2):  # clip 0 is shorter than a voice may be
        path = tmp_path / f"{i}.wav"
        soundfile.write(path, golden[f"encode.{i}.audio"].numpy(), 44100, subtype="FLOAT")
        references.append(Reference("audio", path, f"clip {i}"))

    for options in ({}, {"deterministic": True}, {"max_batch_frames": 60}):
        made = open_book(**options).lookup(references)
        for i, voice in zip((3, 1, 2), made, strict=True):
            assert voice.text == f"clip {i}"
            assert torch.equal(voice.codes, golden[f"encode.{i}.codes"])


def test_a_clip_of_many_rows_is_encoded_once(open_book, clip):
    book = open_book()
    one, two = clip("a.wav", 1.0, seed=1), clip("b.wav", 0.7, seed=2)
    again = Reference("audio", one.path, "another transcript")

    made = book.lookup([one, two, again] * 1000) + book.lookup([one, again])

    assert book.encoded == 2
    assert book.encode_seconds > 0
    assert made[0].codes is made[-1].codes
    assert (made[0].text, made[-1].text) == ("what is said", "another transcript")


def test_a_bad_clip_costs_only_its_own_rows(open_book, clip, tmp_path, voice):
    save_voice(tmp_path / "v.voice", voice, IDENTITY)
    (tmp_path / "torn.wav").write_bytes(b"RIFF")
    references = [
        clip("a.wav", 1.0),
        Reference("audio", tmp_path / "torn.wav", "x"),
        Reference("audio", tmp_path / "away.wav", "x"),
        Reference("voice", tmp_path / "v.voice"),
        clip("short.wav", 0.1),
        clip("b.wav", 0.6),
    ]

    made = open_book().lookup(references)

    reasons = [m.reason if isinstance(m, RowError) else m.text for m in made]
    assert reasons == [
        "what is said",
        "bad_audio",
        "missing_audio",
        voice.text,
        "bad_audio",
        "what is said",
    ]


@pytest.mark.parametrize("code", [-1, 64])
def test_a_voice_file_with_codes_the_codec_lacks_is_refused(open_book, tmp_path, voice, code):
    codes = voice.codes.clone()
    codes[4, 2] = code
    save_voice(tmp_path / "v.voice", Voice(codes, "x"), IDENTITY)
    save_voice(tmp_path / "few.voice", Voice(voice.codes[:9], "x"), IDENTITY)
    for name in ("v.voice", "few.voice"):
        (made,) = open_book().lookup([Reference("voice", tmp_path / name)])
        assert made.reason == "bad_voice"
        assert name in str(made)


def test_a_missing_clip_is_looked_for_again_and_a_bad_one_is_not(open_book, clip, tmp_path):
    book = open_book()
    away = Reference("audio", tmp_path / "a.wav", "x")
    bad = Reference("audio", tmp_path / "bad.wav", "x")
    bad.path.write_bytes(b"noise")
    first = book.lookup([away, bad])
    assert all(isinstance(made, RowError) for made in first)

    clip("a.wav", 1.0)
    bad.path.unlink()
    found, still_bad = book.lookup([away, bad])

    assert isinstance(found, Voice)
    assert still_bad is first[1]


def test_the_cache_forgets_the_voice_not_used_for_longest(open_book, clip):
    book = open_book(cache_frames=40)  # a clip here has 16 frames
    a, b, c = (clip(f"{name}.wav", 0.72, seed=i) for i, name in enumerate("abc"))
    for reference in (a, b, a, c):
        book.lookup([reference])
    assert book.encoded == 3
    book.lookup([a])
    assert book.encoded == 3
    book.lookup([b])
    assert book.encoded == 4


def test_more_voices_than_the_cache_holds_all_come_back(open_book, clip):
    references = [clip(f"{i}.wav", 0.5, str(i), seed=i) for i in range(5)]
    made = open_book(cache_frames=12).lookup(references)
    assert [voice.text for voice in made] == list("01234")


@pytest.mark.parametrize(("options", "calls"), [({}, 1), ({"deterministic": True}, 5)])
def test_clips_share_an_encode_unless_their_codes_must_depend_on_nothing_else(
    open_book, codec, clip, monkeypatch, options, calls
):
    shapes = []
    encode = codec.encode
    monkeypatch.setattr(codec, "encode", lambda audio: shapes.append(audio.shape) or encode(audio))
    references = [clip(f"{i}.wav", 0.5 + i / 10, seed=i) for i in range(5)]

    open_book(**options).lookup(references)

    assert len(shapes) == calls


def test_batches_stay_within_their_frames_and_pad_little(open_book, codec, clip, monkeypatch):
    shapes = []
    encode = codec.encode
    monkeypatch.setattr(codec, "encode", lambda audio: shapes.append(audio.shape) or encode(audio))
    references = [clip(f"{i}.wav", s, seed=i) for i, s in enumerate([0.5, 3, 0.5, 3, 0.5, 3])]

    open_book(max_batch_frames=80).lookup(references)

    assert [rows for rows, _ in shapes] == [3, 1, 1, 1]
    assert all(rows == 1 or rows * -(-samples // 2048) <= 80 for rows, samples in shapes)


def test_no_references_give_no_voices(open_book):
    assert open_book().lookup([]) == []
