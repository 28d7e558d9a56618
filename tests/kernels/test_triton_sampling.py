"""The one-launch sampler against the plain one: the same integers from the same numbers."""

from dataclasses import replace

import pytest
import torch

from fishcli.kernels import sampling as plain
from fishcli.kernels import triton_sampling
from fishcli.kernels.sampling import RAS_WINDOW, Candidates, CounterDraws, SamplingState
from tests.conftest import golden_json, golden_tensors

SETS = golden_json("sampler")
NEAR = 1e-5  # relative difference of two scores that float32 may decide either way
MAX_NEAR_SHARE = 0.002  # of draws that may fall otherwise for that reason; none under the CPU


class Case:
    """Rows of random logits and parameters, and what the plain form draws for them."""

    def __init__(self, rows, entries, device, dtype=torch.float32, seed=0, stop_bonus=0.0):
        generator = torch.Generator().manual_seed(seed)

        def pick(values):
            index = torch.randint(len(values), (rows,), generator=generator)
            return torch.tensor(values)[index].to(device)

        logits = torch.randn(rows, entries + 1, generator=generator) * 3
        logits[:, -1] += stop_bonus
        self.logits = logits.to(device, dtype)
        self.sampling = SamplingState(
            pick([0.0, 0.1, 0.8, 1.0, 1.5]),
            pick([0.1, 0.8, 0.9, 1.0]),
            pick([1, 5, 30, 64]),
            candidates=64,
        )
        self.seed = torch.randint(-(2**62), 2**62, (rows,), generator=generator).to(device)
        self.frame = torch.randint(0, 4000, (rows,), generator=generator).to(device)
        self.window = torch.randint(-1, entries, (rows, RAS_WINDOW), generator=generator).to(device)

    @property
    def draws(self):
        return CounterDraws(self.seed, self.frame)

    def semantic(self, **changes):
        return triton_sampling.sample_semantic(
            self.logits[:, :-1],
            self.logits[:, -1:],
            self.sampling,
            self.window,
            self.seed,
            self.frame,
            **changes,
        )

    def residual(self, codebook):
        return triton_sampling.sample_residual(
            self.logits[:, :-1], self.sampling, self.seed, self.frame, codebook
        )


def ordered(logits, count):
    """The plain form's candidates with equal logits in the order of their entries."""
    count = min(count, logits.shape[1])
    best, entries = logits.float().sort(dim=-1, descending=True, stable=True)
    probability = (best - best.logsumexp(-1, keepdim=True)).exp()
    return Candidates(best[:, :count], entries[:, :count], probability.cumsum(-1)[:, :count])


def assert_same_draw(actual, logits, sampling, draws, codebook=0, draw=0):
    """``actual`` (rows,) is what the plain race draws, but for near ties on a GPU."""
    candidates = ordered(logits, sampling.candidates)
    uniform = draws.uniform(codebook, draw, candidates.entries)
    expected = candidates.race(sampling, uniform)
    differs = actual != expected
    if actual.device.type == "cpu":
        assert not differs.any()
        return
    assert float(differs.double().mean()) <= MAX_NEAR_SHARE
    score = candidates.probabilities(sampling).double() / -uniform.double().log()
    mine = torch.where(candidates.entries == actual[:, None], score, 0.0).sum(-1)
    tie = (mine / score.amax(-1) - 1).abs() < NEAR
    at_cut = ((candidates.cumulative - sampling.top_p[:, None]).abs() < NEAR).any(-1)
    assert bool((~differs | tie | at_cut).all())


def count(device, cpu, cuda):
    return cpu if device.type == "cpu" else cuda


@pytest.mark.parametrize("codebook", [1, 9])
def test_residual_draws_equal_the_plain_ones(device, codebook):
    case = Case(count(device, 24, 4096), 256, device, seed=codebook)
    actual = case.residual(codebook)
    assert_same_draw(actual, case.logits[:, :-1], case.sampling, case.draws, codebook)


def test_semantic_draws_equal_the_plain_ones_with_stops_among_them(device):
    case = Case(count(device, 24, 4096), 256, device, stop_bonus=6.0)
    case.window.fill_(-1)
    actual = case.semantic()
    stops = int((actual == 256).sum())
    assert 0 < stops < len(actual)
    assert_same_draw(actual, case.logits, case.sampling, case.draws)


def test_repeated_codes_are_drawn_again_with_the_second_parameters(device):
    case = Case(count(device, 24, 4096), 256, device, seed=3)
    case.window.fill_(-1)
    first = case.semantic()
    case.window[::2, 7] = first[::2].where(first[::2] < 256, -1)
    case.window[1::2] = (first[1::2, None] + 1) % 256  # near misses
    again = (case.window == first[:, None]).any(-1)
    actual = case.semantic()
    assert torch.equal(actual[~again], first[~again])
    assert int(again.sum()) > len(first) // 3
    rows = again.nonzero().squeeze(1)
    part = replace_rows(case.sampling.repeated(), rows)
    draws = CounterDraws(case.seed[rows], case.frame[rows])
    assert_same_draw(actual[rows], case.logits[rows], part, draws, draw=1)


def replace_rows(sampling, rows):
    return replace(
        sampling,
        temperature=sampling.temperature[rows],
        top_p=sampling.top_p[rows],
        top_k=sampling.top_k[rows],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("entries", [4096, 97])
def test_every_size_and_dtype_equals_the_plain_form_with_ties_in_order(device, dtype, entries):
    case = Case(count(device, 6, 2048), entries, device, dtype, seed=5, stop_bonus=4.0)
    if dtype == torch.bfloat16:
        values = case.logits[0, :-1]
        assert len(values.unique()) < len(values)
    case.window.fill_(-1)
    assert_same_draw(case.semantic(), case.logits, case.sampling, case.draws)


@pytest.mark.parametrize("params", SETS, ids=lambda p: str(p["index"]))
def test_golden_parameter_sets_draw_only_what_golden_leaves(device, params):
    tensors = golden_tensors("sampler")
    times = count(device, 1, 500)
    logits = tensors["logits"].to(device).repeat(times, 1)
    rows = len(logits)

    def full(value, dtype=torch.float32):
        return torch.full((rows,), value, dtype=dtype, device=device)

    sampling = SamplingState(
        full(float(params["temperature"])),
        full(float(params["top_p"])),
        full(int(params["top_k"]), torch.int64),
        int(params["top_k"]),
    )
    seed = torch.arange(rows, device=device)
    frame = torch.full_like(seed, 3)
    actual = triton_sampling.sample_residual(logits, sampling, seed, frame, 2)
    allowed = tensors[f"probs.{params['index']}"].to(device).repeat(times, 1)
    assert bool((allowed.gather(1, actual[:, None]) > 0).all())
    assert_same_draw(actual, logits, sampling, CounterDraws(seed, frame), 2)


def test_temperature_0_and_top_k_1_take_the_best_and_the_first_of_equals(device):
    logits = torch.tensor([[1.0, 5.0, -2.0, 5.0, 5.0], [-0.0, -3.0, 0.0, -1.0, -9.0]])
    logits = logits.to(device).repeat(2, 1)
    sampling = SamplingState(
        torch.tensor([0.0, 0.0, 1.0, 1.0], device=device),
        torch.tensor([0.1, 0.1, 1.0, 1.0], device=device),
        torch.tensor([30, 30, 1, 1], device=device),
        candidates=30,
    )
    seed = torch.arange(4, device=device)
    actual = triton_sampling.sample_residual(logits, sampling, seed, seed, 1)
    assert actual.tolist() == [1, 0, 1, 0]


def test_rows_that_ignore_the_stop_never_stop(device):
    case = Case(6, 256, device, stop_bonus=50.0)
    ignore = torch.tensor([False, True] * 3, device=device)
    actual = case.semantic(ignore_stop=ignore)
    assert torch.equal(actual == 256, ~ignore)
    case.logits[ignore, -1] = float("-inf")
    assert torch.equal(actual, case.semantic())


def test_a_row_draws_the_same_in_any_company_and_from_separate_tensors(device):
    case = Case(5, 256, device, seed=8)
    together = case.semantic()
    for row in (4, 0):
        part = slice(row, row + 1)
        alone = triton_sampling.sample_semantic(
            case.logits[part, :-1].contiguous(),
            case.logits[part, -1:].contiguous(),
            replace_rows(case.sampling, part),
            case.window[part],
            case.seed[part],
            case.frame[part],
        )
        assert torch.equal(alone[0], together[row])


def test_poison_beside_the_logits_is_not_read(device):
    case = Case(4, 100, device)
    held = torch.full((4, 256), float("nan"), device=device)
    held[:, :101] = case.logits
    expected = case.semantic()
    case.logits = held[:, :101]
    assert torch.equal(case.semantic(), expected)


def test_a_few_finite_logits_are_enough(device):
    case = Case(4, 256, device)
    case.logits[:, 2:] = float("-inf")
    assert bool((case.residual(1) < 2).all())


@pytest.mark.parametrize("top_k", [65, 256, 4096])
def test_any_top_k_is_drawn_as_by_the_plain_functions(device, top_k):
    case = Case(count(device, 8, 500), 256, device, seed=top_k)
    case.window.fill_(-1)
    rows = case.sampling.top_k
    case.sampling = replace(case.sampling, top_k=torch.full_like(rows, top_k), candidates=top_k)
    assert_same_draw(case.semantic(), case.logits, case.sampling, case.draws)


@pytest.mark.slow
def test_many_draws_equal_those_of_the_plain_functions(device):
    case = Case(count(device, 500, 4096), 256, device, seed=11, stop_bonus=3.0)
    expected = plain.sample_semantic(case.logits, case.sampling, case.window, case.draws)
    differs = case.semantic() != expected
    assert float(differs.double().mean()) <= count(device, 0.0, MAX_NEAR_SHARE)
