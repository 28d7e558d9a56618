"""Every part can fail: the run ends with that part's own error, and nobody waits for ever."""

import errno
import threading
import time
from dataclasses import replace

import pytest

from fishcli import decoder, writer
from fishcli.codec import Codec
from fishcli.errors import RowError, RunError
from fishcli.ledger import Ledger
from fishcli.pipeline import line, prepare, sources
from fishcli.pipeline.prepare import Preparer
from fishcli.voices import VoiceBook
from tests.pipeline.conftest import long_rows, records, short_rows, sounds


class BrokenError(Exception):
    """What a part raises in these tests."""


def broken_at(call, error):
    """A function that raises ``error`` at its ``call``-th call and works otherwise."""
    count = iter(range(1, 10**9))
    lock = threading.Lock()

    def wrap(work):
        def act(*args, **kwargs):
            with lock:
                number = next(count)
            if number == call:
                raise error
            return work(*args, **kwargs)

        return act

    return wrap


def all_whole(out):
    """Every file of the folder is recorded, with its size, and nothing else is left."""
    recorded = {record["file"]: record["bytes"] for record in records(out)}
    found = {f"wavs/{name}": len(data) for name, data in sounds(out).items()}
    return recorded == found and not list(out.glob(".tmp/*"))


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Preparer, "prepare"),
        (Codec, "decode"),
        (decoder, "_to_host"),
        (line, "decoded_record"),
        (writer, "write_audio"),
        (Ledger, "append"),
    ],
)
def test_the_first_error_of_any_part_ends_the_run(run, monkeypatch, owner, name, call):
    error = BrokenError(name)
    monkeypatch.setattr(prepare, "GROUP_ROWS", 3)
    monkeypatch.setattr(owner, name, broken_at(call, error)(getattr(owner, name)))
    with pytest.raises(BrokenError) as raised:
        run(short_rows(12), max_batch_size=2)
    assert raised.value is error
    monkeypatch.undo()
    if owner is not Ledger:  # a file without a record is whole too, and made again
        assert all_whole(run.out)
    assert run(short_rows(12), max_batch_size=2).exit_code == 0
    assert len(sounds(run.out)) == 12


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("owner", [Codec, writer], ids=["decoder", "writer"])
def test_an_engine_that_waits_in_a_closed_loop_wakes_up(run, monkeypatch, owner, concurrency):
    in_a_loop(monkeypatch, concurrency)
    name = "decode" if owner is Codec else "write_audio"
    monkeypatch.setattr(owner, name, broken_at(2, BrokenError())(getattr(owner, name)))
    with pytest.raises(BrokenError):
        run(short_rows(8), max_batch_size=3)


@pytest.mark.parametrize("concurrency", [1, 3, 20])
def test_a_closed_loop_does_every_row(run, monkeypatch, concurrency):
    in_a_loop(monkeypatch, concurrency)
    assert run(short_rows(8), max_batch_size=3).rows.ok == 8


def in_a_loop(monkeypatch, concurrency):
    settings = line.LineSettings

    def looped(*args, **kwargs):
        return replace(settings(*args, **kwargs), concurrency=concurrency)

    monkeypatch.setattr("fishcli.pipeline.synthesis.LineSettings", looped)


def test_an_engine_that_breaks_leaves_what_was_decoded(run, monkeypatch):
    build = line.build_engine

    def breaking(*args, **kwargs):
        engine = build(*args, **kwargs)
        generate = engine.generate

        def some(source):
            for number, group in enumerate(generate(source)):
                if number == 2:
                    raise BrokenError
                yield group

        engine.generate = some
        return engine

    monkeypatch.setattr(line, "build_engine", breaking)
    with pytest.raises(BrokenError):
        run(short_rows(12), max_batch_size=2)
    assert all_whole(run.out)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full: what was finished is safe"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EIO, "cannot write the output"),
    ],
)
@pytest.mark.parametrize("call", [1, 5])
def test_a_disk_that_refuses_ends_the_run_with_one_line(run, monkeypatch, number, message, call):
    error = OSError(number, "refused")
    monkeypatch.setattr(writer, "write_audio", broken_at(call, error)(writer.write_audio))
    with pytest.raises(RunError, match=message) as raised:
        run(short_rows(12), max_batch_size=2)
    assert raised.value.exit_code == 1
    assert all_whole(run.out)
    monkeypatch.undo()
    rerun = run(short_rows(12), max_batch_size=2)
    assert (rerun.exit_code, rerun.rows.read) == (0, 12)
    assert len(sounds(run.out)) == 12


def test_a_slow_writer_holds_the_engine_back(run, monkeypatch):
    """Rows that have left the engine but are not on disk are bounded, however long the run."""
    monkeypatch.setattr(writer, "JOBS_IN_FLIGHT", 2)
    monkeypatch.setattr(writer, "GROUP_ROWS", 1)
    monkeypatch.setattr(writer, "THREADS", 1)
    monkeypatch.setattr(decoder, "GROUPS_IN_FLIGHT", 1)
    given, written, ahead = [], [], []
    append = Ledger.append

    def slow(ledger, some):
        time.sleep(0.03)
        append(ledger, some)
        written.extend(some)
        ahead.append(len(given) - len(written))

    take = sources.OpenSource.take

    def counting(source, *, wait):
        request = take(source, wait=wait)
        given.extend([request] if request else [])
        return request

    monkeypatch.setattr(Ledger, "append", slow)
    monkeypatch.setattr(sources.OpenSource, "take", counting)
    rows = [each | {"max_new_tokens": 2} for each in long_rows(60)]
    assert run(rows, max_batch_size=2).rows.read == 60
    assert len(written) == 60
    # One group at the decoder, one waiting, one in the engine's hands, two running rows …
    assert max(ahead) <= 30, max(ahead)


def test_rows_that_cannot_be_prepared_do_not_stop_the_others(run, monkeypatch):
    rows = short_rows(6)
    inner = Preparer._prepare

    def refuse(preparer, row, voice):
        if row.id in {"r34", "r5"}:
            raise RowError("bad_text", "refused")
        return inner(preparer, row, voice)

    monkeypatch.setattr(Preparer, "_prepare", refuse)
    done = run(rows)
    assert (done.rows.ok, done.rows.failed, done.reasons) == (4, 2, {"bad_text": 2})


def test_a_broken_voice_book_is_the_runs_error(run, monkeypatch):
    error = BrokenError("voices")

    def fail(*_):
        raise error

    monkeypatch.setattr(VoiceBook, "lookup", fail)
    with pytest.raises(BrokenError):
        run(short_rows(2))
