"""The AR path on a CUDA device: golden agreement, isolation, and no waits for the device."""

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
from fishcli.engine.graphs import ladder, tiles
from fishcli.engine.scheduler import Stretch
from fishcli.kernels.ops import choose_ops
from fishcli.model import load_ar
from fishcli.records import Request, Sampling
from tests.conftest import TOY, golden_tensors, relative_error
from tests.engine.forced import NAMES, teacher_forced

pytestmark = pytest.mark.gpu

CAPACITY = 512


@pytest.fixture(scope="module")
def model():
    return load_ar(
        TOY, torch.device("cuda", 0), torch.float32, choose_ops(torch.device("cuda", 0)).ops
    )


def request(name, frames, **options):
    prompt = golden_tensors("prompts")[f"prompt.{name}"].int()
    sampling = options.pop("sampling", Sampling(1.0, 0.9, 1))
    return Request(name, prompt, sampling, seed=1, max_frames=frames, **options)


def build(model, slots, tile=0, *, captured=True):
    device = torch.device("cuda", 0)
    runner = ModelRunner(model, slots, CAPACITY, slots * CAPACITY // BLOCK_SIZE)
    if captured:
        runner.capture(tiles(slots, tile) if tile else ladder(slots))
    return Engine(runner, EngineSettings.for_device(device, slots, CAPACITY, Batching(tile)))


def generate(engine, requests):
    return {row.id: row for group in engine.generate(ListSource(requests)) for row in group}


def mixed(count, **options):
    """Rows of different prompts, seeds and lengths, some of one voice."""
    prompts = golden_tensors("prompts")
    made = []
    for index in range(count):
        prompt = prompts[f"prompt.{NAMES[index % len(NAMES)]}"].int()
        shared = 64 if NAMES[index % len(NAMES)].endswith("reference") else 0
        sampling = Sampling(0.7 + 0.1 * (index % 4), 0.9, 30)
        made.append(
            Request(
                f"row-{index}",
                prompt,
                sampling,
                seed=index,
                max_frames=8 + 5 * (index % 7),
                shared_columns=shared,
                **options,
            )
        )
    return made


def same(one, other):
    return all(torch.equal(one[key].codes, other[key].codes) for key in one)


def forced_errors(model, name):
    """Largest deviations from float32 golden results, in units of the largest value."""
    golden = golden_tensors("forced")
    semantic, hidden, residual = (part.cpu() for part in teacher_forced(model, name))
    return [
        relative_error(semantic[:, :-1], golden[f"{name}.semantic_logits"]),
        relative_error(hidden, golden[f"{name}.hidden"]),
        relative_error(residual, golden[f"{name}.residual_logits"]),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_forced_runs_agree_with_golden_in_float32(model, name):
    assert max(forced_errors(model, name)) < 5e-6


@pytest.mark.parametrize("name", NAMES)
def test_forced_runs_in_bfloat16_stay_within_two_percent(name):
    ops = choose_ops(torch.device("cuda", 0)).ops
    model = load_ar(TOY, torch.device("cuda", 0), torch.bfloat16, ops)
    assert max(forced_errors(model, name)) < 0.02


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("slots", [1, 3])
def test_greedy_tokens_equal_golden(model, slots, captured):
    rows = generate(build(model, slots, captured=captured), [request(name, 24) for name in NAMES])
    for name in NAMES:
        tokens = golden_tensors("greedy")[f"{name}.tokens"]
        stopped = int(tokens[0, -1]) == model.config.im_end
        frames = tokens[:, :-1] if stopped else tokens
        assert torch.equal(rows[name].codes.cpu(), frames[1:].int())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_captured_frames_equal_uncaptured_ones_bit_for_bit(dtype):
    model = load_ar(TOY, torch.device("cuda", 0), dtype, choose_ops(torch.device("cuda", 0)).ops)
    requests = mixed(9, ignore_stop=True)
    # One tile: both run the same shapes, so only the capture differs.
    captured = generate(build(model, 8, 8), requests)
    assert same(captured, generate(build(model, 8, 8, captured=False), requests))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_give_the_same_bits_in_any_company_and_order(dtype):
    model = load_ar(TOY, torch.device("cuda", 0), dtype, choose_ops(torch.device("cuda", 0)).ops)
    requests = mixed(20)
    full = generate(build(model, 64, 64), requests)
    alone = {}
    for row in requests[::6]:
        alone |= generate(build(model, 64, 64), [row])
    assert same(alone, full)
    assert same(full, generate(build(model, 128, 64), requests[::-1]))


def test_a_row_with_many_candidates_changes_no_other_row_of_its_tile(model):
    """Its frames run uncaptured, but through the same kernels in the same shapes."""
    requests = mixed(6, ignore_stop=True)
    plain = generate(build(model, 8, 8), requests)
    wild = replace(requests[0], id="wild", sampling=Sampling(1.0, 1.0, 200))
    assert same(plain, generate(build(model, 8, 8), [wild, *requests]))


def test_a_frame_never_waits_for_the_device(model):
    runner = ModelRunner(model, 2, CAPACITY, 2 * CAPACITY // BLOCK_SIZE)
    runner.capture(ladder(2))
    runner.frame(Stretch(0, 2, CAPACITY, 30))
    runner.snapshot().read()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            runner.frame(Stretch(0, 2, CAPACITY, 30))
            runner.snapshot()
    finally:
        torch.cuda.set_sync_debug_mode("default")
