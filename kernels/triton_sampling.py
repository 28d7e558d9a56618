"""Drawing tokens in one launch: filter, exponential race and repetition-aware second draw.

Limit: latency. A row is 8 kB of logits and the plain form some forty launches, ten times a
frame. Here a program takes a row. A logit and its index become one integer key (larger
logit first, then the lower index), so that one bitonic selection gives the best
CANDIDATES_LIMIT entries with their indices and without ties; bfloat16 logits fit 32-bit
keys. What follows is work on 64 numbers in registers. Random numbers are those of
:class:`~fishcli.kernels.sampling.CounterDraws`, bit for bit.

Against the plain form a draw differs only where float32 rounding decides: two scores of the
race, or a cumulative probability and top_p, that agree to about 1e-6; and where equal
logits meet the cut, since torch.topk promises no order among them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fishcli.kernels import sampling as plain
from fishcli.kernels.sampling import RAS_WINDOW, SamplingState
from fishcli.kernels.triton_keys import LAST_INDEX, best_keys, read_keys, sort_keys

CANDIDATES_LIMIT = 64  # entries a row may choose among: an upper bound of top_k

_KEPT = tl.constexpr(CANDIDATES_LIMIT)
_LOG_KEPT = tl.constexpr(CANDIDATES_LIMIT.bit_length() - 1)
_WINDOW = tl.constexpr(RAS_WINDOW)
_RAS_TEMPERATURE = tl.constexpr(plain.RAS_TEMPERATURE)
_RAS_TOP_P = tl.constexpr(plain.RAS_TOP_P)
_MIN_TEMPERATURE = tl.constexpr(plain.MIN_TEMPERATURE)
_GAMMA = tl.constexpr(plain._GAMMA)
_MIX_1 = tl.constexpr(plain._MIX_1)
_MIX_2 = tl.constexpr(plain._MIX_2)


def sample_semantic(
    logits: Tensor,
    stop: Tensor,
    sampling: SamplingState,
    window: Tensor,
    seed: Tensor,
    frame: Tensor,
    ignore_stop: Tensor | None = None,
) -> Tensor:
    """Entry of each row, (rows,) int64, V meaning stop; see the twin.

    logits: (rows, V) and stop: (rows, 1), bfloat16 or float32, may be views of one tensor;
    window: (rows, RAS_WINDOW) int64, -1 where empty; seed, frame: (rows,) int64;
    ignore_stop: (rows,) bool, rows that may not stop.
    """
    rows = logits.shape[0]
    assert stop.shape == (rows, 1) and stop.dtype == logits.dtype, (stop.shape, stop.dtype)
    assert window.shape == (rows, RAS_WINDOW) and window.is_contiguous()
    assert window.dtype == torch.int64
    if ignore_stop is not None:
        assert ignore_stop.shape == (rows,) and ignore_stop.is_contiguous()
        assert ignore_stop.dtype == torch.bool
    return _launch(logits, sampling, seed, frame, 0, stop, window, ignore_stop)


def sample_residual(
    logits: Tensor, sampling: SamplingState, seed: Tensor, frame: Tensor, codebook: int
) -> Tensor:
    """Code of each row in ``codebook`` ≥ 1, (rows,) int64; see the twin. logits: (rows, V)."""
    return _launch(logits, sampling, seed, frame, codebook, None, None, None)


def _launch(
    logits: Tensor,
    sampling: SamplingState,
    seed: Tensor,
    frame: Tensor,
    codebook: int,
    stop: Tensor | None,
    window: Tensor | None,
    ignore_stop: Tensor | None,
) -> Tensor:
    rows, entries = logits.shape
    assert logits.stride(1) == 1 and entries <= LAST_INDEX, (logits.shape, logits.stride())
    assert logits.dtype in (torch.bfloat16, torch.float32), logits.dtype
    assert 0 < sampling.candidates <= CANDIDATES_LIMIT, sampling.candidates
    for name, dtype in (("temperature", torch.float32), ("top_p", torch.float32)):
        _check_row_values(getattr(sampling, name), rows, dtype)
    for values in (sampling.top_k, seed, frame):
        _check_row_values(values, rows, torch.int64)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return out
    block = max(triton.next_power_of_2(entries), 2 * CANDIDATES_LIMIT)
    _sample_kernel[(rows,)](
        logits,
        stop,
        ignore_stop,
        window,
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        seed,
        frame,
        out,
        codebook,
        logits.stride(0),
        0 if stop is None else stop.stride(0),
        ENTRIES=entries,
        LOG_BLOCK=block.bit_length() - 1,
        HALF=logits.dtype == torch.bfloat16,
        num_warps=8 if block >= 2048 else 4,
    )
    return out


def _check_row_values(values: Tensor, rows: int, dtype: torch.dtype) -> None:
    assert values.shape == (rows,) and values.is_contiguous(), (values.shape, rows)
    assert values.dtype == dtype, (values.dtype, dtype)


@triton.jit
def _mix64(x):
    """SplitMix64's finalizer on int64; masks turn the arithmetic shifts into logical ones."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MIX_1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _uniform(row_key, codebook, DRAW: tl.constexpr, index):
    """The numbers of ``CounterDraws.uniform`` for the entries ``index``."""
    key = _mix64(row_key + (2 * codebook.to(tl.int64) + (DRAW + 1)) * _GAMMA)
    bits = _mix64(key + (index.to(tl.int64) + 1) * _GAMMA)
    return (((bits >> 41) & 0x7FFFFF).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2⁻²³


@triton.jit
def _race(scaled, index, rank, cut, top_k, uniform):
    """The entry that wins among what ``cut`` and top-k leave; the better rank wins a tie."""
    dropped = (cut | (rank >= top_k)) & (rank > 0)
    scaled = tl.where(dropped, float("-inf"), scaled)
    weight = tl.exp(scaled - tl.max(scaled, axis=0))
    score = weight / tl.sum(weight, axis=0) / -tl.log(uniform)
    best = tl.min(tl.where(score == tl.max(score, axis=0), rank, _KEPT), axis=0)
    return tl.sum(tl.where(rank == best, index, 0), axis=0)


@triton.jit(do_not_specialize=["codebook"])
def _sample_kernel(
    logits_ptr,
    stop_ptr,
    ignore_stop_ptr,
    window_ptr,
    temperature_ptr,
    top_p_ptr,
    top_k_ptr,
    seed_ptr,
    frame_ptr,
    out_ptr,
    codebook,
    logits_stride,
    stop_stride,
    ENTRIES: tl.constexpr,
    LOG_BLOCK: tl.constexpr,
    HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, 2**LOG_BLOCK)
    logits = tl.load(
        logits_ptr + row * logits_stride + index, mask=index < ENTRIES, other=float("-inf")
    ).to(tl.float32)
    peak = tl.max(logits, axis=0)
    keys = best_keys(sort_keys(logits, index, HALF), LOG_BLOCK, _LOG_KEPT)
    if stop_ptr is not None:
        stop = tl.load(stop_ptr + row * stop_stride).to(tl.float32)
        if ignore_stop_ptr is not None:
            stop = tl.where(tl.load(ignore_stop_ptr + row) != 0, float("-inf"), stop)
        peak = tl.maximum(peak, stop)
        # It takes the place of the last candidate if it is better; order is not needed below.
        stop_key = sort_keys(stop, ENTRIES, HALF)
        last = tl.arange(0, _KEPT) == _KEPT - 1
        keys = tl.where(last, tl.maximum(keys, stop_key), keys)
    total = tl.sum(tl.exp(logits - peak), axis=0)
    if stop_ptr is not None:
        total += tl.exp(stop - peak)
    logits, index = read_keys(keys, HALF)
    probability = tl.exp(logits - (peak + tl.log(total)))
    better = keys[None, :] > keys[:, None]
    rank = tl.sum(better.to(tl.int32), axis=1)
    cumulative = tl.sum(tl.where(better, probability[None, :], 0.0), axis=1) + probability

    row_key = _mix64(tl.load(seed_ptr + row)) + (tl.load(frame_ptr + row) + 1) * _GAMMA
    row_key = _mix64(row_key)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    temperature = tl.maximum(tl.load(temperature_ptr + row), _MIN_TEMPERATURE)
    scaled = tl.div_rn(logits, tl.zeros_like(logits) + temperature)
    cut = cumulative > tl.where(top_p < 1.0, top_p, float("inf"))
    uniform = _uniform(row_key, codebook, 0, index)
    entry = _race(scaled, index, rank, cut, top_k, uniform)
    if window_ptr is not None:
        place = tl.arange(0, 16)
        window = tl.load(window_ptr + row * _WINDOW + place, mask=place < _WINDOW, other=-1)
        if tl.sum((window == entry).to(tl.int32), axis=0) > 0:  # never the stop
            uniform = _uniform(row_key, codebook, 1, index)
            scaled, cut = logits / _RAS_TEMPERATURE, cumulative > _RAS_TOP_P
            entry = _race(scaled, index, rank, cut, top_k, uniform)
    tl.store(out_ptr + row, entry.to(tl.int64))
