"""Shared prefixes and rows that give way: less memory, the same codes."""

import torch

from fishcli.engine import BLOCK_SIZE, Batching, Engine, EngineSettings, ListSource, ModelRunner
from fishcli.records import Request, Sampling
from tests.conftest import golden_tensors

CAPACITY = 320
SAMPLING = Sampling(0.8, 0.9, 30)


def voiced(count, *, shared, frames=12, expected=0):
    """Rows of one voice: the same 64 columns, then columns of their own."""
    prompt = golden_tensors("prompts")["prompt.two_references"].int()
    assert prompt.shape[1] > 80
    rows = []
    for index in range(count):
        own = prompt.clone()
        own[0, 70 + index % 8] = 40 + index  # a text token of its own, after the prefix
        rows.append(
            Request(
                f"row-{index}",
                own,
                SAMPLING,
                seed=index,
                max_frames=frames + index % 5,
                ignore_stop=True,
                expected_frames=expected,
                shared_columns=70 if shared else 0,
            )
        )
    return rows


def run(model, rows, slots, blocks, tile=0):
    engine = Engine(
        ModelRunner(model, slots, CAPACITY, blocks),
        EngineSettings(slots, CAPACITY, batching=Batching(tile)),
    )
    finished = [row for group in engine.generate(ListSource(rows)) for row in group]
    assert sorted(row.id for row in finished) == sorted(row.id for row in rows)
    return {row.id: row.codes for row in finished}, engine.stats


def agreement(one, other):
    return sum(torch.equal(one[key], other[key]) for key in one) / len(one)


def test_rows_of_one_voice_read_its_prefix_once(toy_ar):
    rows = voiced(6, shared=True)
    shared, stats = run(toy_ar, rows, 3, 30)
    whole, plain = run(toy_ar, voiced(6, shared=False), 3, 30)
    assert stats.prefixes == 1 and plain.prefixes == 0
    length = rows[0].prompt.shape[1]
    assert plain.prefill_columns == 6 * length
    assert stats.prefill_columns == 64 + 6 * (length - 64)
    assert agreement(shared, whole) == 1.0


def test_a_prefix_cut_is_the_same_bits_whether_it_was_there_or_not(toy_ar):
    rows = voiced(5, shared=True)
    together, _ = run(toy_ar, rows, 3, 30, tile=1)
    for row in rows:
        alone, stats = run(toy_ar, [row], 1, 10, tile=1)
        assert stats.prefixes == 1
        assert torch.equal(alone[row.id], together[row.id])


def test_rows_give_way_and_lose_nothing(toy_ar):
    """Four slots, room for two and a half rows at their longest, estimates far too low."""
    rows = voiced(7, shared=False, frames=90, expected=1)
    calm, stats = run(toy_ar, rows, 1, 10, tile=1)
    assert stats.preempted == 0
    crowded, stats = run(toy_ar, rows, 4, 24, tile=1)
    assert stats.preempted > 0
    assert all(torch.equal(calm[key], crowded[key]) for key in calm)


def test_rows_give_way_together_with_their_prefix(toy_ar):
    rows = voiced(7, shared=True, frames=90, expected=1)
    calm, _ = run(toy_ar, rows, 1, 10, tile=1)
    crowded, stats = run(toy_ar, rows, 4, 18, tile=1)
    assert stats.preempted > 0
    assert all(torch.equal(calm[key], crowded[key]) for key in calm)


def test_good_estimates_admit_only_what_fits(toy_ar):
    rows = voiced(6, shared=False, frames=60)
    _, stats = run(toy_ar, rows, 4, 20)
    assert stats.preempted == 0
    assert stats.occupancy(4) <= 0.6


def test_capacity_is_asked_for_in_whole_blocks():
    assert CAPACITY % BLOCK_SIZE == 0
