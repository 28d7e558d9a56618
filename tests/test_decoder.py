"""Finished codes become PCM: grouped, bounded, and without a busy thread in between."""

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fishcli import decoder
from fishcli.codec import load_codec
from fishcli.decoder import DecoderThread, decode_rows
from fishcli.records import FinishedCodes
from tests.conftest import CPU, TOY


@pytest.fixture(scope="module")
def codec():
    return load_codec(TOY, CPU, torch.float32)


def finished(row_id, frames, codebooks=10):
    generator = torch.Generator().manual_seed(frames)
    codes = torch.randint(64, (codebooks, frames), generator=generator, dtype=torch.int32)
    return FinishedCodes(row_id, codes, "stop")


def decode_all(codec, rows, **options):
    return {d.row.id: d for call in decode_rows(codec, rows, **options) for d in call}


def test_rows_of_many_lengths_keep_their_own_samples(codec):
    rows = [finished(f"r{frames}", frames) for frames in (3, 0, 17, 1, 8, 3)]
    rows[-1] = finished("other", 3)
    together = decode_all(codec, rows, int16=False)
    assert set(together) == {row.id for row in rows}
    for row in rows:
        frames = row.codes.shape[1]
        assert together[row.id].pcm.shape == (frames * codec.hop_length,)
        assert together[row.id].finite
        alone = codec.decode(row.codes[None])[0].numpy()
        assert np.allclose(together[row.id].pcm, alone, atol=1e-5)


def test_isolated_rows_are_the_same_bits_in_any_company(codec):
    rows = [finished(f"r{frames}", frames) for frames in (5, 9, 2, 9)]
    rows[3] = finished("twin", 9)
    alone = {row.id: decode_all(codec, [row], isolated=True)[row.id].pcm for row in rows}
    for company in (rows, rows[::-1], rows[1:3]):
        for row_id, made in decode_all(codec, company, isolated=True).items():
            assert (made.pcm == alone[row_id]).all()
    assert all(len(call) == 1 for call in decode_rows(codec, rows, isolated=True))


def test_int16_is_the_rounded_float(codec):
    row = finished("r", 4)
    exact = decode_all(codec, [row], int16=False)["r"].pcm
    rounded = decode_all(codec, [row])["r"].pcm
    assert rounded.dtype == np.int16
    assert np.abs(rounded - exact * 32767.0).max() <= 0.5 + 1e-3


def test_nothing_but_empty_rows_is_no_error(codec):
    made = decode_all(codec, [finished("a", 0), finished("b", 0)])
    assert [len(made[row_id].pcm) for row_id in ("a", "b")] == [0, 0]
    assert decode_all(codec, []) == {}


@settings(deadline=None)
@given(st.lists(st.integers(0, 400), max_size=40), st.sampled_from([0, 128, 2048]))
def test_batches_hold_every_row_once_within_their_bound(lengths, most):
    rows = [finished(str(index), frames, 1) for index, frames in enumerate(lengths)]
    batches = list(decoder._batches(rows, most))
    assert sorted(int(row.id) for batch in batches for row in batch) == list(range(len(rows)))
    for batch in batches:
        frames = [row.codes.shape[1] for row in batch]
        assert len(batch) == 1 or len(batch) * max(frames) <= most


class Spoiled:
    """A codec whose audio is given."""

    hop_length, num_codebooks, device = 4, 10, CPU

    def __init__(self, audio):
        self.audio = torch.tensor(audio)

    def decode(self, codes):
        return self.audio[: len(codes), : codes.shape[2] * 4]


def test_a_rows_padding_counts_for_nothing():
    """Neither what is not finite nor what is too loud there is the row's own."""
    nan = float("nan")
    codec = Spoiled([[0.5] * 8, [0.1, -3.0, 2.0, 0.0, nan, 9.0, 9.0, 9.0]])
    made = decode_all(codec, [finished("long", 2), finished("short", 1)], int16=False)
    assert (made["long"].finite, made["long"].clipped) == (True, 0)
    assert (made["short"].finite, made["short"].clipped) == (True, 2)
    assert made["short"].pcm.tolist() == pytest.approx([0.1, -1.0, 1.0, 0.0])
    codec = Spoiled([[0.5, nan, 0.5, 0.5]])
    assert not decode_all(codec, [finished("bad", 1)])["bad"].finite


def test_the_thread_decodes_in_the_order_it_is_given(codec):
    seen = []
    thread = DecoderThread(codec, seen.extend, seen.append)
    for number in range(6):
        thread.put([finished(f"r{number}", 1 + number % 3)])
    thread.close()
    assert thread.join(20.0)
    assert [row.row.id for row in seen] == [f"r{number}" for number in range(6)]
    assert thread.busy_s > 0


def test_an_idle_thread_uses_no_cpu(codec):
    used, decoded = [], threading.Event()

    def sink(rows):
        used.append(time.thread_time())  # of the decoder thread
        decoded.set()

    thread = DecoderThread(codec, sink, lambda error: None, threads=1)
    for wait_s in (0.0, 0.0, 1.0):
        time.sleep(wait_s)
        decoded.clear()
        thread.put([finished("r", 1)])
        assert decoded.wait(20.0)
    thread.close()
    assert thread.join(20.0)
    assert used[2] - used[1] < 0.25  # a second of waiting and one short decode


def test_an_error_is_handed_on_and_ends_the_thread(codec):
    errors = []

    def sink(rows):
        raise ValueError("sink")

    thread = DecoderThread(codec, sink, errors.append)
    thread.put([finished("a", 1)])
    assert thread.join(20.0)
    assert [str(error) for error in errors] == ["sink"]


def test_a_failed_thread_drops_what_waits_and_tells_who_puts(codec):
    entered, go_on, seen = threading.Event(), threading.Event(), []

    def sink(rows):
        seen.extend(rows)
        entered.set()
        go_on.wait(20.0)

    thread = DecoderThread(codec, sink, seen.append, isolated=True)
    thread.put([finished("a", 2), finished("b", 1)])
    assert entered.wait(20.0)
    thread.put([finished("c", 1)])
    thread.fail(KeyError("stop"))
    with pytest.raises(KeyError):
        thread.put([finished("d", 1)])
    go_on.set()
    assert thread.join(20.0)
    assert [row.row.id for row in seen if not isinstance(row, KeyError)] == ["a"]


def test_a_full_thread_holds_back_who_puts(codec, monkeypatch):
    monkeypatch.setattr(decoder, "GROUPS_IN_FLIGHT", 2)
    go_on = threading.Event()
    thread = DecoderThread(codec, lambda rows: go_on.wait(20.0) and None, lambda error: None)
    count = []

    def put_many():
        for number in range(5):
            thread.put([finished(str(number), 1)])
            count.append(number)

    putting = threading.Thread(target=put_many)
    putting.start()
    time.sleep(0.3)
    assert len(count) <= 3  # one being decoded, two waiting
    go_on.set()
    putting.join(20.0)
    thread.close()
    assert thread.join(20.0)
    assert len(count) == 5
