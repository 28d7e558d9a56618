"""Fingerprints change with everything that changes a row's audio, and with nothing else."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fishcli.errors import RowError
from fishcli.fingerprint import Fingerprinter, ReferenceDigests
from fishcli.records import Reference, Row, Sampling

ROW = Row(0, 1, "a", "hello", None, Sampling(), 4096, 7)


def fingerprinter(model: str = "m", subtype: str = "PCM_16") -> Fingerprinter:
    return Fingerprinter(model, "wav", subtype, ReferenceDigests())


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.wav"
    path.write_bytes(b"clip")
    return path


def test_it_is_32_hex_digits_and_the_same_in_every_run() -> None:
    assert fingerprinter().fingerprint(ROW) == "d9bf9ff668aaf57e76dd13d5f3487e0f"


@pytest.mark.parametrize(
    "change",
    [
        {"text": "hello!"},
        {"sampling": Sampling(0.7)},
        {"sampling": Sampling(top_p=0.7)},
        {"sampling": Sampling(top_k=7)},
        {"max_new_tokens": 4095},
        {"seed": 8},
    ],
)
def test_what_changes_audio_changes_it(change: dict[str, Any]) -> None:
    finger = fingerprinter()
    assert finger.fingerprint(replace(ROW, **change)) != finger.fingerprint(ROW)


def test_model_and_format_change_it() -> None:
    runs = [fingerprinter(), fingerprinter("n"), fingerprinter(subtype="PCM_24")]
    assert len({run.fingerprint(ROW) for run in runs}) == 3


def test_place_id_and_carried_columns_do_not(clip: Path) -> None:
    other = replace(ROW, index=9, line=10, id="b", extra={"x": 1}, warnings=("w",))
    whole = replace(ROW, sampling=Sampling(1))
    finger = fingerprinter()
    assert finger.fingerprint(other) == finger.fingerprint(ROW)
    assert finger.fingerprint(whole) == finger.fingerprint(replace(ROW, sampling=Sampling(1.0)))


def test_a_voice_counts_by_content_and_transcript_not_by_path(clip: Path, tmp_path: Path) -> None:
    finger = fingerprinter()
    row = replace(ROW, reference=Reference("audio", clip, "said"))
    copy = tmp_path / "copy.flac"
    copy.write_bytes(clip.read_bytes())
    other = tmp_path / "other.wav"
    other.write_bytes(b"other")
    voices = [
        finger.fingerprint(replace(ROW, reference=reference))
        for reference in (
            None,
            Reference("audio", copy, "said"),
            Reference("audio", copy, "else"),
            Reference("audio", other, "said"),
            Reference("voice", copy),
        )
    ]
    assert len(set(voices)) == 5
    assert finger.fingerprint(row) == voices[1]


def test_a_file_is_hashed_once_and_again_when_it_changes(clip: Path, tmp_path: Path) -> None:
    store = tmp_path / "cache" / "references.jsonl"
    digests = ReferenceDigests(store)
    first = digests.digest(clip)
    assert digests.digest(clip) == first
    assert digests.hashed == 1
    assert digests.seconds > 0

    again = ReferenceDigests(store)
    assert again.digest(clip) == first
    assert again.hashed == 0

    clip.write_bytes(b"new!")
    os.utime(clip, ns=(1, 1))
    changed = ReferenceDigests(store)
    assert changed.digest(clip) != first
    assert changed.hashed == 1
    assert ReferenceDigests(store).digest(clip) == changed.digest(clip)


def test_torn_and_foreign_lines_in_the_store_cost_a_hash_at_most(
    clip: Path, tmp_path: Path
) -> None:
    store = tmp_path / "references.jsonl"
    first = ReferenceDigests(store).digest(clip)
    store.write_bytes(
        b"\xff\n[1]\n" + b"[" * 100_000 + b"\n" + store.read_bytes().strip() + b'\n{"path": "to'
    )
    other = tmp_path / "other.wav"
    other.write_bytes(b"other")
    digests = ReferenceDigests(store)
    assert digests.digest(clip) == first
    digests.digest(other)
    assert digests.hashed == 1
    again = ReferenceDigests(store)
    again.digest(other)
    assert again.hashed == 0


def test_a_missing_file_is_a_passing_error_of_its_row(tmp_path: Path) -> None:
    with pytest.raises(RowError, match=r"none\.wav cannot be read") as caught:
        ReferenceDigests().digest(tmp_path / "none.wav")
    assert caught.value.passing


def test_a_store_that_cannot_be_written_is_no_error(clip: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert ReferenceDigests().digest(clip)
    digests = ReferenceDigests(tmp_path / "read-only" / "x.jsonl")
    (tmp_path / "read-only").touch()
    assert digests.digest(clip)
