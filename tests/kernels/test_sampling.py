"""The sampler against golden probabilities, and the properties of its random numbers."""

import math

import pytest
import torch

from fishcli.kernels.sampling import (
    RAS_WINDOW,
    Candidates,
    CounterDraws,
    SamplingState,
    sample_semantic,
)
from tests.conftest import golden_json, golden_tensors, relative_error

SETS = golden_json("sampler")


def state(temperature, top_p, top_k, rows):
    return SamplingState(
        torch.full((rows,), float(temperature)),
        torch.full((rows,), float(top_p)),
        torch.full((rows,), int(top_k)),
        candidates=int(top_k),
    )


def spread(candidates: Candidates, probabilities, entries):
    return torch.zeros(probabilities.shape[0], entries).scatter(
        1, candidates.entries, probabilities
    )


@pytest.mark.parametrize("params", SETS, ids=lambda p: str(p["index"]))
@pytest.mark.parametrize("spare", [0, 40])
def test_filtered_probabilities_equal_golden(params, spare):
    tensors = golden_tensors("sampler")
    names = sorted(tensors)
    logits = tensors["logits"]
    expected = tensors[f"probs.{params['index']}"]
    sampling = state(params["temperature"], params["top_p"], params["top_k"], len(logits))
    candidates = Candidates.of(logits, params["top_k"] + spare)
    actual = spread(candidates, candidates.probabilities(sampling), logits.shape[1])
    assert relative_error(actual, expected) < 5e-6, names
    assert torch.equal(actual > 0, expected > 0)


def test_rows_of_a_batch_keep_their_own_parameters():
    tensors = golden_tensors("sampler")
    logits = tensors["logits"][:1].expand(len(SETS), -1)
    sampling = SamplingState(
        torch.tensor([p["temperature"] for p in SETS]),
        torch.tensor([p["top_p"] for p in SETS]),
        torch.tensor([p["top_k"] for p in SETS]),
        candidates=max(p["top_k"] for p in SETS),
    )
    candidates = Candidates.of(logits, sampling.candidates)
    actual = spread(candidates, candidates.probabilities(sampling), logits.shape[1])
    for row, params in enumerate(SETS):
        expected = tensors[f"probs.{params['index']}"][:1]
        assert relative_error(actual[row : row + 1], expected) < 5e-6


def test_draws_follow_the_probabilities():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).expand(40000, -1)
    draws = CounterDraws(torch.arange(40000), torch.zeros(40000, dtype=torch.long))
    sampling = state(1.0, 1.0, 4, 40000)
    candidates = Candidates.of(logits, 4)
    drawn = candidates.race(sampling, draws.uniform(3, 0, candidates.entries))
    share = torch.bincount(drawn, minlength=4) / 40000
    expected = logits[0].softmax(-1)
    chi_square = float((40000 * (share - expected).square() / expected).sum())
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001


def test_numbers_depend_on_the_key_and_not_on_the_company():
    seeds = torch.tensor([5, 6, 2**63 - 1])
    frames = torch.tensor([0, 17, 4095])
    entries = torch.tensor([[0, 7, 4096]] * 3)
    together = CounterDraws(seeds, frames).uniform(2, 1, entries)
    for row in (2, 0, 1):
        part = slice(row, row + 1)
        alone = CounterDraws(seeds[part], frames[part]).uniform(2, 1, entries[part])
        assert torch.equal(alone[0], together[row])


def test_numbers_are_uniform_and_uncorrelated_over_every_part_of_the_key():
    entries = torch.arange(4097)[None]
    one = torch.ones(1, dtype=torch.long)
    base = CounterDraws(one, one).uniform(1, 0, entries)
    assert float(base.min()) > 0 and float(base.max()) < 1
    assert abs(float(base.mean()) - 0.5) < 4 / math.sqrt(12 * 4097)
    others = [
        CounterDraws(one * 2, one).uniform(1, 0, entries),
        CounterDraws(one, one * 2).uniform(1, 0, entries),
        CounterDraws(one, one).uniform(2, 0, entries),
        CounterDraws(one, one).uniform(1, 1, entries),
        base.roll(1, dims=-1),
    ]
    for other in others:
        correlation = float(torch.corrcoef(torch.cat([base, other]))[0, 1])
        assert abs(correlation) < 4.5 / math.sqrt(4097)


def test_extreme_numbers_stay_inside_the_open_interval():
    bits_one = torch.tensor([[(1 << 23) - 1]]).float()
    largest = (bits_one + 0.5) * 2.0**-23
    assert float(largest) < 1.0
    assert math.isfinite(float(1 / -largest.log()))


class FixedDraws:
    """Entry 0 wins the first race, entry 1 the second."""

    def uniform(self, codebook, draw, entries):
        return torch.where(entries == draw, 0.999, 0.001)


def test_a_repeated_token_is_drawn_again_and_the_stop_never_is():
    logits = torch.zeros(3, 3)
    window = torch.full((3, RAS_WINDOW), -1)
    window[1, 4] = 0  # row 1 has spoken code 0 lately
    window[2, 4] = 1
    sampling = state(1.0, 1.0, 3, 3)
    assert sample_semantic(logits, sampling, window, FixedDraws()).tolist() == [0, 1, 0]
