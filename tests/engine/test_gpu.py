"""The AR path on a CUDA device: golden agreement, isolation, and no waits for the device."""

import pytest
import torch

from fishcli.engine import Engine, EngineSettings, ListSource, ModelRunner
from fishcli.engine.runner import Stretch
from fishcli.model import load_ar
from fishcli.records import Request, Sampling
from tests.conftest import TOY, golden_json, golden_tensors

pytestmark = pytest.mark.gpu

NAMES = [case["name"] for case in golden_json("prompts")["cases"]]
CAPACITY = 512


@pytest.fixture(scope="module")
def model():
    return load_ar(TOY, torch.device("cuda", 0), torch.float32)


def request(name, frames, **options):
    prompt = golden_tensors("prompts")[f"prompt.{name}"].int()
    sampling = options.pop("sampling", Sampling(1.0, 0.9, 1))
    return Request(name, prompt, sampling, seed=1, max_frames=frames, **options)


def generate(model, requests, slots, **options):
    settings = EngineSettings.for_device(torch.device("cuda"), slots, CAPACITY, **options)
    engine = Engine(ModelRunner(model, slots, CAPACITY), settings)
    return {row.id: row for group in engine.generate(ListSource(requests)) for row in group}


@pytest.mark.parametrize("slots", [1, 3])
def test_greedy_tokens_equal_golden(model, slots):
    rows = generate(model, [request(name, 24) for name in NAMES], slots)
    for name in NAMES:
        tokens = golden_tensors("greedy")[f"{name}.tokens"]
        stopped = int(tokens[0, -1]) == model.config.im_end
        frames = tokens[:, :-1] if stopped else tokens
        assert torch.equal(rows[name].codes.cpu(), frames[1:].int())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_isolated_rows_are_the_same_bits_in_any_company(dtype):
    model = load_ar(TOY, torch.device("cuda", 0), dtype)
    sampling = Sampling(0.8, 0.9, 30)
    requests = [request(name, 20, sampling=sampling, ignore_stop=True) for name in NAMES]
    alone = generate(model, requests, 1, isolated=True)
    together = generate(model, requests[::-1], 5, isolated=True)
    assert all(torch.equal(alone[name].codes, together[name].codes) for name in NAMES)


def test_a_frame_never_waits_for_the_device(model):
    runner = ModelRunner(model, 2, CAPACITY)
    requests = [request(name, 40, ignore_stop=True) for name in NAMES[:2]]
    runner.prefill([0, 1], requests)
    length = max(r.prompt.shape[1] for r in requests) + 1
    runner.frame(Stretch(0, 2, length, 30))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(1, 5):
            runner.frame(Stretch(0, 2, length + step, 30))
            runner.snapshot()
    finally:
        torch.cuda.set_sync_debug_mode("default")
