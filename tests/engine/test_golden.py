"""The whole AR path against golden results: forced, greedy and sampled runs."""

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
from fishcli.model import load_ar
from fishcli.records import Request, Sampling
from tests.conftest import CPU, TOY, golden_json, golden_tensors, relative_error
from tests.engine.forced import CAPACITY, NAMES, teacher_forced


@pytest.mark.parametrize("name", NAMES)
def test_forced_run_agrees_in_float32(toy_ar, name):
    golden = golden_tensors("forced")
    semantic, hidden, residual = teacher_forced(toy_ar, name)
    assert relative_error(semantic[:, :-1], golden[f"{name}.semantic_logits"]) < 5e-6
    scale = golden[f"{name}.semantic_logits"].abs().max()
    stop_error = (semantic[:, -1] - golden[f"{name}.im_end_logit"]).abs().max() / scale
    assert stop_error < 5e-6
    assert relative_error(hidden, golden[f"{name}.hidden"]) < 5e-6
    assert relative_error(residual, golden[f"{name}.residual_logits"]) < 5e-6


@pytest.mark.parametrize("name", ["plain", "one_reference"])
def test_forced_run_in_bfloat16_is_as_close_to_float32_as_golden_is(name):
    model = load_ar(TOY, CPU, torch.bfloat16)
    exact, golden = golden_tensors("forced"), golden_tensors("forced.bfloat16")
    semantic, hidden, residual = teacher_forced(model, name)
    actual = {
        "semantic_logits": semantic[:, :-1],
        "hidden": hidden,
        "residual_logits": residual,
    }
    for part, tensor in actual.items():
        key = f"{name}.{part}"
        theirs = relative_error(golden[key], exact[key])
        assert 0.001 < theirs < 0.03
        assert relative_error(tensor, exact[key]) < 0.03
        assert relative_error(tensor, golden[key]) < 0.03


def request(name, sampling, frames):
    prompt = golden_tensors("prompts")[f"prompt.{name}"].int()
    return Request(name, prompt, sampling, seed=1, max_frames=frames)


def generate(model, requests, *, slots, tile=0, **runner_options):
    blocks = slots * CAPACITY // BLOCK_SIZE
    runner = ModelRunner(model, slots, CAPACITY, blocks, **runner_options)
    settings = EngineSettings.for_device(CPU, slots, CAPACITY, Batching(tile))
    groups = Engine(runner, settings).generate(ListSource(requests))
    return {row.id: row for group in groups for row in group}


def assert_same_frames(row, tokens, im_end, limit):
    stopped = int(tokens[0, -1]) == im_end
    frames = tokens[:, :-1] if stopped else tokens
    assert torch.equal(row.codes, frames[1:].int())
    assert row.finish_reason == ("stop" if stopped else "length")
    assert stopped or frames.shape[1] == limit


@pytest.mark.parametrize(("slots", "tile"), [(1, 0), (3, 0), (1, 1), (3, 1), (4, 2)])
def test_greedy_tokens_equal_golden_in_a_continuous_batch(toy_ar, slots, tile):
    golden = golden_tensors("greedy")
    sampling = Sampling(temperature=1.0, top_p=0.9, top_k=1)
    requests = [request(name, sampling, 24) for name in NAMES]
    rows = generate(toy_ar, requests, slots=slots, tile=tile)
    assert list(rows) and set(rows) == set(NAMES)
    for name in NAMES:
        assert_same_frames(rows[name], golden[f"{name}.tokens"], toy_ar.config.im_end, 24)


class WrittenDraws:
    """The uniform numbers that the golden run wrote down."""

    def __init__(self, name, frame):
        golden = golden_tensors("sampled")
        index = min(int(frame), golden[f"{name}.uniform_semantic"].shape[0] - 1)
        self.semantic = golden[f"{name}.uniform_semantic"][index]
        self.residual = golden[f"{name}.uniform_residual"][index]

    def uniform(self, codebook, draw, entries):
        table = self.semantic[draw] if codebook == 0 else self.residual[codebook - 1]
        return table[entries]


@pytest.mark.parametrize("run", golden_json("sampled"), ids=lambda run: run["case"])
def test_sampled_tokens_equal_golden(toy_ar, run):
    name = run["case"]
    sampling = Sampling(run["temperature"], run["top_p"], run["top_k"])
    rows = generate(
        toy_ar,
        [request(name, sampling, run["frames"])],
        slots=1,
        make_draws=lambda seed, frame: WrittenDraws(name, frame),
    )
    tokens = golden_tensors("sampled")[f"{name}.tokens"]
    assert_same_frames(rows[name], tokens, toy_ar.config.im_end, run["frames"])
