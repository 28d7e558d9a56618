"""Drawing tokens: the S2 filter, exponential races, and repetition-aware sampling.

All functions work on a batch of rows whose parameters differ and read nothing back
to the host. Random numbers come from a :class:`Draws`, in production a counter-based
one: a number depends on (row seed, frame, codebook, draw, entry) and on nothing else,
so a row draws the same tokens in any company.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

RAS_WINDOW = 10  # semantic tokens of the utterance that must not repeat unasked
RAS_TEMPERATURE = 1.0
RAS_TOP_P = 0.9
MIN_TEMPERATURE = 1e-5


class Draws(Protocol):
    """Uniform numbers in (0, 1), one per candidate entry."""

    def uniform(self, codebook: int, draw: int, entries: Tensor) -> Tensor:
        """``entries``: (rows, k) indices into the codebook's logits → (rows, k) float32.

        ``draw`` is 0 for a first draw, 1 for the replacement of a repeated token.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SamplingState:
    """Sampling parameters of the rows of a batch: (rows,) each, on the device.

    ``candidates`` bounds every row's top_k and is known to the host.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    candidates: int

    def repeated(self) -> SamplingState:
        """The parameters of the second draw of repetition-aware sampling."""
        return SamplingState(
            torch.full_like(self.temperature, RAS_TEMPERATURE),
            torch.full_like(self.top_p, RAS_TOP_P),
            self.top_k,
            self.candidates,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The best entries of each row, best first: values, indices, cumulative probability.

    All (rows, k). The probability is of the raw logits over all entries, without
    temperature.
    """

    logits: Tensor
    entries: Tensor
    cumulative: Tensor

    @classmethod
    def of(cls, logits: Tensor, count: int) -> Candidates:
        """logits: (rows, entries); keeps min(count, entries) of them."""
        logits = logits.float()
        best, entries = logits.topk(min(count, logits.shape[-1]), dim=-1)
        probability = (best - logits.logsumexp(-1, keepdim=True)).exp()
        return cls(best, entries, probability.cumsum(-1))

    def probabilities(self, sampling: SamplingState) -> Tensor:
        """What remains after top-k, top-p and temperature, as probabilities (rows, k).

        An entry goes when the cumulative sum including it exceeds top_p (1.0: never) or
        its rank is ≥ top_k; the best one always stays.
        """
        rank = torch.arange(self.logits.shape[-1], device=self.logits.device)
        top_p = sampling.top_p[:, None]
        dropped = ((self.cumulative > top_p) & (top_p < 1.0)) | (rank >= sampling.top_k[:, None])
        dropped = dropped & (rank > 0)
        scaled = self.logits / sampling.temperature[:, None].clamp_min(MIN_TEMPERATURE)
        return scaled.masked_fill(dropped, float("-inf")).softmax(-1)

    def race(self, sampling: SamplingState, uniform: Tensor) -> Tensor:
        """Draw one entry a row, (rows,) int64: argmax(p / -log u)."""
        winner = (self.probabilities(sampling) / -uniform.log()).argmax(-1, keepdim=True)
        return self.entries.gather(-1, winner).squeeze(-1)


def sample_residual(logits: Tensor, sampling: SamplingState, draws: Draws, codebook: int) -> Tensor:
    """logits (rows, V) of ``codebook`` ≥ 1 → codes (rows,) int64."""
    candidates = Candidates.of(logits, sampling.candidates)
    return candidates.race(sampling, draws.uniform(codebook, 0, candidates.entries))


def sample_semantic(
    logits: Tensor,
    sampling: SamplingState,
    window: Tensor,
    draws: Draws,
    ignore_stop: Tensor | None = None,
) -> Tensor:
    """logits (rows, V + 1), the stop last → entry (rows,) int64; V means stop.

    ``ignore_stop``: (rows,) bool, rows that must not draw the stop.

    ``window``: (rows, RAS_WINDOW) recent semantic codes, -1 where there is none. A drawn
    code found in it is replaced by a second draw (temperature 1.0, top-p 0.9).
    """
    if ignore_stop is not None:
        barred = F.pad(ignore_stop[:, None], (logits.shape[1] - 1, 0))
        logits = logits.masked_fill(barred, float("-inf"))
    candidates = Candidates.of(logits, sampling.candidates)
    first = candidates.race(sampling, draws.uniform(0, 0, candidates.entries))
    second = candidates.race(sampling.repeated(), draws.uniform(0, 1, candidates.entries))
    repeated = (window == first[:, None]).any(-1)  # the stop is never in the window
    return torch.where(repeated, second, first)


def _signed(x: int) -> int:
    """x modulo 2**64 as the int64 of the same bits."""
    return (x + (1 << 63)) % (1 << 64) - (1 << 63)


# Odd constants of the SplitMix64 generator (Steele, Lea, Flood 2014).
_GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def mix64(x: Tensor) -> Tensor:
    """SplitMix64's finalizer on int64 tensors (arithmetic wraps modulo 2**64)."""
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's int64 shift is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class CounterDraws:
    """Counter-based draws: no state, so nothing to save, reorder or share.

    seed, frame: (rows,) int64 on the device; ``frame`` counts the row's own frames.
    """

    seed: Tensor
    frame: Tensor

    def uniform(self, codebook: int, draw: int, entries: Tensor) -> Tensor:
        key = mix64(mix64(self.seed) + (self.frame + 1) * _GAMMA)
        key = mix64(key + _signed((2 * codebook + draw + 1) * _GAMMA))
        bits = mix64(key[:, None] + (entries + 1) * _GAMMA)
        # The upper 23 bits and a half: never 0 or 1, and exact in float32.
        return (_shift(bits, 41).float() + 0.5) * 2.0**-23
