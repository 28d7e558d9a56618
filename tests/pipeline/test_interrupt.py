"""Signals and time limits, in every phase of a run."""

import os
import signal
import threading
import time

import pytest

from fishcli import decoder, writer
from fishcli.codec import Codec
from fishcli.pipeline import line, synthesis
from fishcli.pipeline.interrupt import SAME_REQUEST_S, Interrupted, Interrupts
from fishcli.voices import VoiceBook
from tests.pipeline.conftest import (
    long_rows,
    records,
    report,
    row,
    short_rows,
    snapshot,
    sounds,
)

SOON_S = 10.0  # in which an interrupted run has to end
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(params=CODES, ids=lambda number: number.name)
def number(request):
    return request.param


def test_a_stoppable_stretch_is_left_at_once(number):
    with Interrupts().installed() as interrupts:
        with pytest.raises(Interrupted, match=number.name) as raised, interrupts.stoppable():
            signal.raise_signal(number)
            time.sleep(60)
        assert raised.value.exit_code == CODES[number]


def test_elsewhere_a_signal_waits_for_the_next_stretch(number):
    with Interrupts().installed() as interrupts:
        signal.raise_signal(number)
        with pytest.raises(Interrupted), interrupts.stoppable():
            pytest.fail("the stretch was entered")


@pytest.mark.parametrize("early", [True, False])
def test_a_signal_is_handed_over_in_a_thread_of_its_own(number, early):
    """So whoever is told may take locks that the main thread holds."""
    lock, told = threading.Lock(), []

    def stop(interrupted):
        with lock:
            told.append(interrupted.exit_code)

    with Interrupts().installed() as interrupts:
        if early:
            signal.raise_signal(number)
        with interrupts.handed_to(stop), lock:
            if not early:
                signal.raise_signal(number)
    assert told == [CODES[number]]


def test_two_signals_at_once_are_one_request():
    with Interrupts().installed() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted), interrupts.stoppable():
            pass


def test_the_next_signal_ends_the_process(monkeypatch):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    with Interrupts().installed():
        signal.raise_signal(signal.SIGINT)
        time.sleep(SAME_REQUEST_S + 0.05)
        signal.raise_signal(signal.SIGTERM)
    assert codes == [143]


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in CODES]
    with Interrupts().installed():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in CODES] == before


def test_a_thread_that_is_not_the_main_one_leaves_signals_alone():
    seen = []

    def inside():
        before = signal.getsignal(signal.SIGINT)
        with Interrupts().installed() as interrupts, interrupts.stoppable():
            seen.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [True]


@pytest.mark.parametrize("name", ["resolve", "open_manifest", "scan"])
def test_a_run_that_is_stopped_before_it_has_a_plan_changes_nothing(run, monkeypatch, number, name):
    run(short_rows(2))
    before = snapshot(run.out)
    signal_in(monkeypatch, number, synthesis, name)
    with pytest.raises(Interrupted) as raised:
        run(short_rows(3))
    assert raised.value.exit_code == CODES[number]
    assert snapshot(run.out) == before


# Where the signal comes: the phase, and something that is called in it.
PHASES = {
    "loading": (synthesis, "load_models"),
    "preparing": (VoiceBook, "lookup"),
    "generating": (line, "build_engine"),
    "decoding": (Codec, "decode"),
    "recording": (line, "decoded_record"),
    "writing": (writer, "write_audio"),
    "results": (synthesis, "write_results"),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_stopped_run_reports_and_can_go_on(run, monkeypatch, number, phase):
    rows = short_rows(8)
    with monkeypatch.context() as patch:
        signal_in(patch, number, *PHASES[phase])
        started = time.monotonic()
        stopped = run(rows, max_batch_size=2)
        assert time.monotonic() - started < SOON_S
    assert stopped.exit_code == CODES[number]
    assert stopped.ended == f"stopped by {number.name}"
    told = report(run.out)
    assert (told["exit_code"], told["ended"]) == (stopped.exit_code, stopped.ended)
    recorded = len(records(run.out)) if (run.out / "wavs").exists() else 0
    assert stopped.rows.ok == recorded == len(sounds(run.out))
    assert stopped.rows.pending == 8 - recorded
    assert recorded == 8 if phase == "results" else recorded < 8
    again = run(rows, max_batch_size=2)
    assert (again.exit_code, again.rows.ok, again.rows.skipped) == (0, 8 - recorded, recorded)
    assert len(sounds(run.out)) == 8


def signal_in(patch, number, owner, name):
    """The signal arrives while ``name`` is called for the first time."""
    inner = getattr(owner, name)
    sent = []

    def act(*args, **kwargs):
        result = inner(*args, **kwargs)
        if not sent:
            sent.append(True)
            os.kill(os.getpid(), number)
            time.sleep(0.05)  # the main thread, if this is another one, notices
        return result

    patch.setattr(owner, name, act)


def test_a_run_stops_while_it_drains(run, monkeypatch):
    """The engine is done, the decoder has far more to do than the ten seconds allow."""
    monkeypatch.setattr(decoder, "GROUPS_IN_FLIGHT", 100)
    decode, fail = Codec.decode, []

    def slow(codec, codes):
        time.sleep(0.5)
        if not fail:
            fail.append(True)
            threading.Timer(1.5, signal.raise_signal, [signal.SIGINT]).start()
        return decode(codec, codes)

    monkeypatch.setattr(Codec, "decode", slow)
    started = time.monotonic()
    stopped = run([each | {"max_new_tokens": 1} for each in long_rows(60)], deterministic=True)
    assert time.monotonic() - started < SOON_S
    assert stopped.exit_code == 130
    assert 1 <= stopped.rows.capped == len(sounds(run.out)) < 10


def test_a_call_that_takes_too_long_is_left_behind(run, monkeypatch):
    """The process may go although a thread is still in the codec; its row is done later."""
    monkeypatch.setattr(line, "CALLS_END_S", 0.3)
    entered, go_on = threading.Event(), threading.Event()
    decode = Codec.decode

    def stuck(codec, codes):
        entered.set()
        go_on.wait(60)
        return decode(codec, codes)

    monkeypatch.setattr(Codec, "decode", stuck)

    def interrupt():
        entered.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    stopped = run(short_rows(3))
    go_on.set()
    assert (stopped.exit_code, stopped.rows.pending) == (143, 3)
    monkeypatch.undo()
    assert run(short_rows(3)).rows.ok == 3


def test_a_time_limit_drains_and_a_rerun_does_the_rest(run, monkeypatch):
    decode = Codec.decode

    def slow(codec, codes):
        time.sleep(0.1)
        return decode(codec, codes)

    monkeypatch.setattr(Codec, "decode", slow)
    monkeypatch.setattr(synthesis, "FINISH_SHARE", 0.5)
    rows = [row(number, max_new_tokens=2) for number in range(200, 260)]
    run(short_rows(1), out="warm")  # so that the limit is not spent on loading libraries
    started = time.monotonic()
    limited = run(rows, max_batch_size=2, time_limit_s=3.0, deterministic=True)
    assert time.monotonic() - started < SOON_S
    assert (limited.exit_code, limited.ended) == (130, "the time limit is reached")
    done = len(records(run.out))
    assert limited.rows.pending == 60 - done
    assert 0 < done < 60
    monkeypatch.undo()
    again = run(rows, deterministic=True)
    assert (again.rows.pending, again.rows.skipped) == (0, done)
    assert len(sounds(run.out)) == 60


def test_a_time_limit_drops_what_does_not_finish(run, monkeypatch):
    """Rows that run when the limit comes near get a while, then they are given up."""
    decode = Codec.decode

    def slow(codec, codes):
        time.sleep(0.4)
        return decode(codec, codes)

    monkeypatch.setattr(Codec, "decode", slow)
    monkeypatch.setattr(synthesis, "STOP_SHARE", 0.5)
    run(short_rows(1), out="warm")
    limited = run(short_rows(12), time_limit_s=2.0, deterministic=True)
    assert limited.exit_code == 130
    assert limited.rows.pending > 0
    assert limited.rows.ok == len(records(run.out)) == len(sounds(run.out))


def test_a_time_limit_that_suffices_changes_nothing(run):
    assert run(short_rows(2), time_limit_s=600.0).exit_code == 0


def test_a_limit_that_is_over_before_generation_leaves_every_row_pending(run):
    limited = run(short_rows(2), time_limit_s=1e-3)
    assert (limited.exit_code, limited.rows.pending) == (130, 2)
