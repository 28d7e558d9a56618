"""A manifest becomes files, a ledger, results and a report."""

import json
from dataclasses import replace

import pytest
import soundfile
import torch

from fishcli.codec import Codec
from fishcli.errors import UsageError
from tests.pipeline.conftest import (
    HOP,
    STOPPING,
    records,
    report,
    results,
    row,
    short_rows,
    sounds,
    write_manifest,
)
from tests.test_audio import tone


def counts(done):
    rows = done.rows
    assert rows.read == rows.ok + rows.capped + rows.failed + rows.skipped + rows.pending
    return rows.ok, rows.capped, rows.failed, rows.skipped


def test_every_row_gets_its_whole_file_and_its_place_in_the_tables(run):
    rows = [row(number, speaker=f"s{number}") for number in STOPPING[:4]]
    done = run(rows)
    assert counts(done) == (4, 0, 0, 0)
    assert done.exit_code == 0
    by_id = {record["id"]: record for record in records(run.out)}
    assert set(by_id) == {each["id"] for each in rows}
    for row_id, record in by_id.items():
        path = run.out / record["file"]
        sound = soundfile.info(path)
        assert sound.frames == record["frames"] * HOP
        assert (sound.samplerate, sound.channels, sound.subtype) == (44100, 1, "PCM_16")
        assert (record["bytes"], path.name) == (path.stat().st_size, f"{row_id}.wav")
    table = results(run.out)
    assert [line["id"] for line in table] == [each["id"] for each in rows]
    assert [line["speaker"] for line in table] == [each["speaker"] for each in rows]
    assert {line["status"] for line in table} == {"ok"}
    lines = (run.out / "metadata.jsonl").read_text().splitlines()
    assert [json.loads(line)["file_name"] for line in lines] == [t["file"] for t in table]
    told = report(run.out)
    assert told["rows"] == {"read": 4, "ok": 4, "capped": 0, "failed": 0, "skipped": 0} | {
        "pending": 0,
        "skipped_capped": 0,
    }
    assert told["audio_s"] == pytest.approx(sum(t["frames"] for t in table) * HOP / 44100)
    assert run.watcher.last.finished == 4


@pytest.mark.parametrize(
    ("audio_format", "subtype", "bits"),
    [("flac", "PCM_16", 16), ("wav", "PCM_24", 24), ("wav", "FLOAT", 32)],
)
def test_other_formats_hold_the_same_samples(run, audio_format, subtype, bits):
    run(short_rows(3))
    run(short_rows(3), out="other", audio_format=audio_format, subtype=subtype)
    for name in sounds(run.out):
        other = run.folder / "other" / "wavs" / name.replace(".wav", f".{audio_format}")
        assert soundfile.info(other).subtype == subtype
        samples, _ = soundfile.read(run.out / "wavs" / name)
        again, _ = soundfile.read(other)
        assert abs(samples - again).max() <= 2.0**-14
        if bits == 16:
            assert (samples == again).all()


def test_the_hashed_layout_spreads_files_over_folders(run):
    run(short_rows(3), layout="hashed")
    folders = {path.parent.name for path in (run.out / "wavs").rglob("*.wav")}
    assert len(folders) == 3 and all(len(name) == 2 for name in folders)
    assert all((run.out / line["file"]).exists() for line in results(run.out))


def test_eight_rows_of_three_voices_in_one_batch_and_a_broken_one(run, tmp_path):
    """Each row is what it is alone: its own voice, its own text. The broken one harms nobody."""
    for name, hertz in (("a", 220.0), ("b", 500.0)):
        soundfile.write(tmp_path / f"{name}.wav", tone(1.0, 44100, hertz), 44100)
    (tmp_path / "broken.wav").write_bytes(b"RIFF, but no sound")
    voices = ["a", "b", "broken", "a", "b", "a", "b", "a"]
    rows = [
        row(index, ref_audio=f"../{voice}.wav", ref_text="A tone.", max_new_tokens=8)
        for index, voice in enumerate(voices)
    ]
    done = run(rows, deterministic=True)
    assert (done.rows.failed, done.rows.ok + done.rows.capped, done.exit_code) == (1, 7, 3)
    broken = results(run.out)[2]
    assert (broken["status"], broken["reason"]) == ("failed", "bad_audio")
    assert "broken.wav" in broken["message"]
    run(rows[1:2], out="alone", deterministic=True)
    run([row(1, max_new_tokens=8)], out="voiceless", deterministic=True)
    alone = sounds(run.folder / "alone")["r1.wav"]
    assert sounds(run.out)["r1.wav"] == alone
    assert sounds(run.folder / "voiceless")["r1.wav"] != alone
    assert len(set(sounds(run.out).values())) == 7


def test_a_capped_row_keeps_its_file_and_is_flagged(run):
    done = run([row(16), row(25, max_new_tokens=3)])
    assert counts(done) == (1, 1, 0, 0)
    assert done.exit_code == 3
    capped = results(run.out)[1]
    assert (capped["status"], capped["finish_reason"], capped["frames"]) == ("capped", "length", 3)
    assert soundfile.info(run.out / capped["file"]).frames == 3 * HOP


@pytest.mark.parametrize("mute", [{"r24"}, {"r34", "r0", "r24"}])
def test_a_row_without_a_frame_has_no_audio_and_no_file(run, changed_codes, mute):
    """Also when the whole batch is empty."""
    changed_codes(lambda made: replace(made, codes=made.codes[:, :0]) if made.id in mute else made)
    done = run(short_rows(3))
    assert counts(done) == (3 - len(mute), 0, len(mute), 0)
    assert done.reasons == {"no_audio": len(mute)}
    assert {f"{name}.wav" for name in mute}.isdisjoint(sounds(run.out))
    assert run(short_rows(3)).rows.skipped == 3 - len(mute)


def test_audio_that_is_not_finite_fails_its_row_only(run, monkeypatch):
    decode = Codec.decode

    def spoil(codec, codes):
        audio = decode(codec, codes)
        if codes.shape[2] == 2:  # r24 and r5 have two frames, the others have not
            audio[:, 5] = torch.nan
        return audio

    monkeypatch.setattr(Codec, "decode", spoil)
    done = run([row(1), row(24), row(16)], deterministic=True)
    assert counts(done) == (2, 0, 1, 0)
    assert done.reasons == {"not_finite": 1}
    assert set(sounds(run.out)) == {"r1.wav", "r16.wav"}


def test_samples_beyond_one_are_clamped_and_counted(run, monkeypatch):
    decode = Codec.decode

    def louder(codec, codes):
        audio = decode(codec, codes)
        audio[:, :7] = 1.5
        return audio

    monkeypatch.setattr(Codec, "decode", louder)
    run([row(24)])
    assert results(run.out)[0]["flags"] == ["clipped 7 samples"]
    samples, _ = soundfile.read(run.out / "wavs" / "r24.wav", dtype="int16")
    assert (samples[:7] == 32767).all()


def test_a_manifest_without_a_valid_row_is_refused(run):
    with pytest.raises(UsageError, match="no valid row in 2"):
        run([{"id": "a", "text": ""}, {"id": "b"}])
    assert len(run.watcher.notes) >= 2  # the problems, line by line
    assert not (run.out / "wavs").exists()
    assert not (run.out / "run.json").exists()  # nothing was made that binds the next run


def test_bad_rows_are_counted_and_the_others_done(run):
    done = run([row(34), row(0, top_k=0), {"id": "x", "text": " "}])
    assert counts(done) == (1, 0, 2, 0)
    assert done.exit_code == 3
    assert [line["status"] for line in results(run.out)] == ["ok", "failed", "failed"]


def test_a_manifest_inside_the_output_folder_is_refused(run):
    manifest = write_manifest(run.out / "rows.jsonl", short_rows(1))
    from fishcli.pipeline import synthesize
    from fishcli.settings import SynthSettings

    settings = replace(SynthSettings.defaults(), model="mini", device="cpu")
    with pytest.raises(UsageError, match="holds the manifest"):
        synthesize(manifest, run.out, settings, run.watcher)
    assert {path.name for path in run.out.iterdir()} == {"rows.jsonl"}


def test_takes_say_each_text_with_several_seeds(run):
    done = run([row(34), row(16)], takes=2, max_new_tokens=4)
    assert done.rows.read == 4
    assert [line["id"] for line in results(run.out)] == [
        f"{name}-take{take}" for name in ("r34", "r16") for take in (1, 2)
    ]
    assert len({line["seed"] for line in results(run.out)}) == 4
