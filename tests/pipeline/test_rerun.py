"""What a second run does: nothing, or exactly what is missing, changed, asked for."""

import io
import json
import os
import sys
from dataclasses import replace

import pytest

from fishcli.errors import UsageError
from fishcli.pipeline import synthesize
from fishcli.records import Sampling
from fishcli.settings import SynthSettings
from tests.pipeline.conftest import records, results, row, short_rows, snapshot, sounds


def done_by(run, rows, **settings):
    """The ids that a further run writes records for."""
    before = len(records(run.out))
    run(rows, **settings)
    return sorted(record["id"] for record in records(run.out)[before:])


def test_the_same_again_does_nothing(run):
    run(short_rows(3))
    before = snapshot(run.out / "wavs")
    again = run(short_rows(3))
    assert (again.rows.skipped, again.rows.ok, again.exit_code) == (3, 0, 0)
    assert snapshot(run.out / "wavs") == before
    assert len(records(run.out)) == 3
    assert len(results(run.out)) == 3


def test_a_changed_text_redoes_its_row_only(run):
    rows = short_rows(3)
    run(rows)
    before = snapshot(run.out / "wavs")
    rows[1]["text"] += " Changed."
    assert done_by(run, rows) == [rows[1]["id"]]
    changed = {name for name, found in snapshot(run.out / "wavs").items() if found != before[name]}
    assert changed == {f"{rows[1]['id']}.wav"}
    assert results(run.out)[1]["text"] == rows[1]["text"]


@pytest.mark.parametrize("harm", ["delete", "truncate", "forget"])
def test_a_lost_file_or_record_redoes_its_row(run, harm):
    rows = short_rows(3)
    run(rows, deterministic=True)
    before = sounds(run.out)
    path = run.out / "wavs" / "r0.wav"
    if harm == "delete":
        path.unlink()
    elif harm == "truncate":
        os.truncate(path, path.stat().st_size - 2)
    else:  # a ledger line torn by a crash
        ledger = run.out / "ledger" / "main.jsonl"
        lines = ledger.read_bytes().splitlines(keepends=True)
        lines.sort(key=lambda line: b'"r0"' in line)
        ledger.write_bytes(b"".join(lines)[:-9])
    run(rows, deterministic=True)
    assert [record["id"] for record in records_read(run.out)][3 - (harm == "forget") :] == ["r0"]
    assert sounds(run.out) == before


def records_read(out):
    """The ledger's whole lines: a torn one stays where it is."""
    whole = []
    for line in (out / "ledger" / "main.jsonl").read_text().splitlines():
        try:
            whole.append(json.loads(line))
        except ValueError:
            continue
    return whole


def test_other_settings_are_refused_and_nothing_changes(run):
    run(short_rows(2))
    before = snapshot(run.out)
    with pytest.raises(UsageError, match="temperature was 0.8, now 0.5") as refused:
        run(short_rows(2), sampling=Sampling(temperature=0.5))
    assert refused.value.exit_code == 2
    assert snapshot(run.out) == before


def test_overwrite_replaces_every_row(run):
    run(short_rows(3))
    before = sounds(run.out)
    assert done_by(run, short_rows(3), overwrite=True, seed=5) == ["r0", "r24", "r34"]
    assert all(before[name] != found for name, found in sounds(run.out).items())


def test_retry_failed_does_failed_and_capped_rows_and_nothing_else(run, changed_codes):
    rows = [row(34), row(0), row(16, max_new_tokens=2)]
    changed_codes(lambda made: replace(made, codes=made.codes[:, : 0 if made.id == "r0" else 9]))
    run(rows)
    assert {line["id"]: line["status"] for line in results(run.out)} == {
        "r34": "ok",
        "r0": "failed",
        "r16": "capped",
    }
    rows.append(row(24))  # never tried, so nothing to retry
    assert done_by(run, rows, retry_failed=True) == ["r0", "r16"]
    assert done_by(run, rows) == ["r24"]


def test_a_clip_that_was_away_is_tried_again(run, tmp_path):
    import shutil

    from tests.cli.conftest import SAMPLES

    rows = [row(34), row(0, ref_audio="../late.wav", ref_text="Late.", max_new_tokens=2)]
    assert run(rows).rows.failed == 1
    shutil.copy(SAMPLES / "voices" / "a.wav", tmp_path / "late.wav")
    assert done_by(run, rows) == ["r0"]


def test_a_limit_looks_at_the_first_rows_only(run):
    assert run(short_rows(4), limit=2).rows.read == 2
    assert set(sounds(run.out)) == {"r34.wav", "r0.wav"}
    assert done_by(run, short_rows(4)) == ["r24", "r5"]


def test_standard_input_is_a_manifest(run, monkeypatch):
    text = "".join(json.dumps(each) + "\n" for each in short_rows(2))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    settings = replace(SynthSettings.defaults(), model="mini", device="cpu")
    assert synthesize("-", run.out, settings, run.watcher).rows.ok == 2
    run(short_rows(2), out="other")
    assert sounds(run.out) == sounds(run.folder / "other")
