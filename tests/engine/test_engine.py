"""Continuous batching: rows join, leave and repeat, whatever their company."""

import random
import time
from dataclasses import replace

import pytest
import torch

from fishcli.engine import (
    BLOCK_SIZE,
    Batching,
    Engine,
    EngineSettings,
    ListSource,
    ModelRunner,
)
from fishcli.model import DualAR
from fishcli.records import Request, Sampling
from tests.conftest import CPU, golden_tensors

CAPACITY = 256
PROMPTS = ["plain", "speaker_tag", "tagged_reference", "unicode"]


def requests(count, **changes):
    """Rows whose prompts, parameters, seeds and budgets all differ."""
    prompts = golden_tensors("prompts")
    made = []
    for index in range(count):
        sampling = Sampling(0.5 + 0.1 * (index % 5), 0.7 + 0.1 * (index % 3), 5 + index % 30)
        options = {"max_frames": 3 + (7 * index) % 20, "ignore_stop": index % 2 == 0} | changes
        prompt = prompts[f"prompt.{PROMPTS[index % 4]}"].int()
        made.append(Request(f"row-{index}", prompt, sampling, seed=1000 + index, **options))
    return made


def run(model, rows, slots, *, tile=0, blocks=None, **options):
    settings = EngineSettings(slots, CAPACITY, batching=Batching(tile), **options)
    blocks = blocks or slots * CAPACITY // BLOCK_SIZE
    engine = Engine(ModelRunner(model, slots, CAPACITY, blocks), settings)
    finished = [row for group in engine.generate(ListSource(rows)) for row in group]
    assert engine.active == 0
    assert len({row.id for row in finished}) == len(finished)
    return {row.id: row for row in finished}, engine


def same(one, other):
    return all(
        torch.equal(one[key].codes, other[key].codes)
        and one[key].finish_reason == other[key].finish_reason
        for key in one
    )


def test_every_row_comes_out_once_with_its_own_budget(toy_ar):
    rows = requests(11)
    finished, engine = run(toy_ar, rows, slots=4)
    assert set(finished) == {row.id for row in rows}
    for row in rows:
        frames = finished[row.id].codes.shape[1]
        assert frames <= row.max_frames
        if row.ignore_stop:
            assert frames == row.max_frames
            assert finished[row.id].finish_reason == "length"
    assert engine.stats.prefill_rows == 11
    assert 0.5 < engine.stats.occupancy(4) <= 1.0


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_isolated_rows_do_not_depend_on_company_or_order(toy_ar, slots):
    rows = requests(8)
    alone, _ = run(toy_ar, rows, slots=1, tile=1)
    shuffled = list(rows)
    random.Random(slots).shuffle(shuffled)
    together, _ = run(toy_ar, shuffled, slots=slots, tile=1)
    assert same(alone, together)


def test_batched_rows_draw_the_same_tokens_as_alone(toy_ar):
    """Not promised bit for bit, but a leak between slots would change many tokens."""
    rows = requests(12)
    alone, _ = run(toy_ar, rows, slots=1)
    together, _ = run(toy_ar, rows, slots=5)
    equal = sum(torch.equal(alone[row.id].codes, together[row.id].codes) for row in rows)
    assert equal >= 11


@pytest.mark.parametrize(("look_every", "lag"), [(1, 0), (3, 0), (4, 1), (2, 3)])
def test_looking_late_changes_nothing_but_the_time(toy_ar, look_every, lag):
    rows = requests(9)
    prompt, _ = run(toy_ar, rows, slots=3, tile=1)
    late, engine = run(toy_ar, rows, slots=3, tile=1, look_every=look_every, lag=lag)
    assert same(prompt, late)
    assert engine.stats.frames % look_every == 0


def test_a_run_repeats_bit_for_bit(toy_ar):
    rows = requests(10)
    one, _ = run(toy_ar, rows, slots=4, look_every=2, lag=1)
    other, _ = run(toy_ar, rows, slots=4, look_every=2, lag=1)
    assert same(one, other)


def test_seeds_matter(toy_ar):
    prompt = golden_tensors("prompts")["prompt.plain"].int()
    rows = [
        Request(str(seed), prompt, Sampling(1.0, 1.0, 50), seed, 8, ignore_stop=True)
        for seed in range(4)
    ]
    finished, _ = run(toy_ar, rows, slots=4)
    assert len({tuple(row.codes.flatten().tolist()) for row in finished.values()}) == 4


@pytest.mark.parametrize("lag", [0, 2])
def test_a_row_may_fill_a_context_that_is_no_multiple_of_a_block(toy_ar, lag):
    """Ended rows are computed on for a while: they must not leave the table of angles."""
    context = 13 * BLOCK_SIZE // 3
    slow = replace(toy_ar.config.slow, max_seq_len=context)
    model = DualAR(replace(toy_ar.config, slow=slow))
    model.load_state_dict(toy_ar.state_dict())
    (row,) = requests(1, ignore_stop=True)
    row = replace(row, max_frames=context - row.prompt.shape[1])
    settings = EngineSettings(1, context, look_every=4, lag=lag)
    runner = ModelRunner(model.ready(), 1, context, -(-context // BLOCK_SIZE))
    (finished,) = [
        row for group in Engine(runner, settings).generate(ListSource([row])) for row in group
    ]
    expected, _ = run(toy_ar, [row], slots=1)
    assert torch.equal(finished.codes, expected[row.id].codes)


class Trickle:
    """A source that has a row ready only when the engine has nothing else to do."""

    def __init__(self, rows, wait_s=0.0):
        self.rows = list(rows)
        self.waits = 0
        self.wait_s = wait_s

    def take(self, *, wait):
        if not wait:
            return None
        self.waits += 1
        time.sleep(self.wait_s)
        return self.rows.pop(0)

    @property
    def exhausted(self):
        return not self.rows


def test_a_source_with_nothing_ready_does_not_stall_running_rows(toy_ar):
    source = Trickle(requests(3))
    engine = Engine(ModelRunner(toy_ar, 4, CAPACITY, 32), EngineSettings(4, CAPACITY))
    finished = [row for group in engine.generate(source) for row in group]
    assert [row.id for row in finished] == ["row-0", "row-1", "row-2"]
    assert source.waits == 3


def test_waiting_for_the_source_is_not_counted_as_reading(toy_ar):
    source = Trickle(requests(2, max_frames=1), wait_s=0.5)
    engine = Engine(ModelRunner(toy_ar, 1, CAPACITY, 8), EngineSettings(1, CAPACITY))
    assert sum(len(group) for group in engine.generate(source)) == 2
    assert 0 < engine.stats.prefill_s < 0.5


def test_a_row_that_stops_at_once_has_no_frames(toy_ar):
    prompt = golden_tensors("prompts")["prompt.plain"].int()
    row = Request("row", prompt, Sampling(1.0, 1.0, 257), seed=1, max_frames=9)
    runner = ModelRunner(toy_ar, 1, CAPACITY, 8, make_draws=lambda seed, frame: StopFirst())
    engine = Engine(runner, EngineSettings(1, CAPACITY))
    (group,) = engine.generate(ListSource([row]))
    assert group[0].codes.shape == (10, 0)
    assert group[0].finish_reason == "stop"


class StopFirst:
    """The stop wins every race for the semantic token."""

    def uniform(self, codebook, draw, entries):
        return torch.where((entries == 256) & (codebook == 0), 1 - 1e-6, 1e-30)


def test_slow_frames_still_give_the_caller_a_turn(toy_ar, monkeypatch):
    monkeypatch.setattr("fishcli.engine.engine.LOOK_AROUND_S", 0.0)
    rows = requests(3)
    engine = Engine(ModelRunner(toy_ar, 3, CAPACITY, 24), EngineSettings(3, CAPACITY))
    groups = list(engine.generate(ListSource(rows)))
    assert groups[0] == []
    assert len(groups) > engine.stats.frames // 2
    alone, _ = run(toy_ar, rows, slots=3)
    assert same(alone, {row.id: row for group in groups for row in group})


def test_closing_the_generator_ends_the_run(toy_ar):
    engine = Engine(ModelRunner(toy_ar, 2, CAPACITY, 16), EngineSettings(2, CAPACITY))
    generator = engine.generate(ListSource(requests(6)))
    next(generator)
    generator.close()
    with pytest.raises(StopIteration):
        next(generator)


def test_device_is_where_the_weights_are(toy_ar):
    assert ModelRunner(toy_ar, 1, CAPACITY, 8).device == CPU
