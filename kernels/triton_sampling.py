"""Drawing tokens in one launch: filter, exponential race and repetition-aware second draw.

Limit: latency. A row is 8 kB of logits and the plain form some forty launches, ten times a
frame. Here a program takes a row. A logit and its index become one integer key (larger
logit first, then the lower index), without ties. Top-k and top-p keep the keys from some key
on, which a bisection finds: a step is one sum over the row, of some 15 to 20. Nothing is
sorted, all logits stay where they were loaded, and a row's top_k may be anything: the bound
``SamplingState.candidates`` is of no use here. Random numbers are those of
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
from fishcli.kernels.triton_keys import LAST_INDEX, count_and_mass, least_key, logit_of, sort_keys
from fishcli.kernels.triton_pdl import launch_options, let_next_start, wait_for_inputs

WARPS = 8

_LAST = tl.constexpr(LAST_INDEX)
_INDEX_BITS = tl.constexpr(LAST_INDEX.bit_length())
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
    for name, dtype in (("temperature", torch.float32), ("top_p", torch.float32)):
        _check_row_values(getattr(sampling, name), rows, dtype)
    for values in (sampling.top_k, seed, frame):
        _check_row_values(values, rows, torch.int64)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return out
    block = max(triton.next_power_of_2(entries), 128)
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
        BLOCK=block,
        HALF=logits.dtype == torch.bfloat16,
        num_warps=WARPS if block >= 2048 else 4,
        **launch_options(logits),
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
def _scores(logits, peak, index, temperature, uniform):
    """Score and entry of the race as one integer: the larger score, then the lower entry."""
    best = tl.div_rn(peak, temperature)
    weight = tl.exp(tl.div_rn(logits, tl.zeros_like(logits) + temperature) - best)
    score = (weight / -tl.log(uniform)).to(tl.int32, bitcast=True)  # not negative: in order
    return (score.to(tl.int64) << _INDEX_BITS) + (_LAST - index)


@triton.jit
def _draw(
    logits, index, keys, units, low, high, stop, stop_index, stop_key, stop_units, temperature,
    top_p, top_k, row_key, codebook, DRAW: tl.constexpr, HALF: tl.constexpr, STOP: tl.constexpr,
):  # fmt: skip
    """The entry that wins the race ``DRAW`` among what top-k and top-p leave, int64."""
    peak = logit_of(high, HALF)
    least = least_key(keys, units, low, high, stop_key, stop_units, top_k, top_p, HALF, STOP)
    uniform = _uniform(row_key, codebook, DRAW, index)
    scores = _scores(logits, peak, index, temperature, uniform)
    best = tl.max(tl.where(keys >= least, scores, -1), axis=0)
    if STOP:
        uniform = _uniform(row_key, codebook, DRAW, stop_index)
        score = _scores(stop, peak, stop_index, temperature, uniform)
        best = tl.maximum(best, tl.where(stop_key >= least, score, -1))
    return _LAST - (best & _LAST)


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
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    STOP: tl.constexpr = stop_ptr is not None
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    logits = tl.load(
        logits_ptr + row * logits_stride + index, mask=index < ENTRIES, other=float("-inf")
    ).to(tl.float32)
    row_key = _mix64(tl.load(seed_ptr + row)) + (tl.load(frame_ptr + row) + 1) * _GAMMA
    row_key = _mix64(row_key)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    temperature = tl.maximum(tl.load(temperature_ptr + row), _MIN_TEMPERATURE)
    keys = sort_keys(logits, index, HALF)
    high, low = tl.max(keys, axis=0), tl.min(keys, axis=0)
    stop, stop_key, stop_units = temperature, high, top_k  # unused without a stop
    if STOP:
        stop = tl.load(stop_ptr + row * stop_stride).to(tl.float32)
        if ignore_stop_ptr is not None:
            stop = tl.where(tl.load(ignore_stop_ptr + row) != 0, float("-inf"), stop)
        stop_key = sort_keys(stop, ENTRIES, HALF)
        high, low = tl.maximum(high, stop_key), tl.minimum(low, stop_key)
    low -= 1
    peak = logit_of(high, HALF)
    mass = tl.exp(logits - peak)
    total = tl.sum(mass, axis=0)
    if STOP:
        total += tl.exp(stop - peak)
        stop_units = count_and_mass(tl.exp(stop - peak), total)
    units = count_and_mass(mass, total)

    stop_index = (row * 0 + ENTRIES).to(tl.int32)
    entry = _draw(
        logits, index, keys, units, low, high, stop, stop_index, stop_key, stop_units,
        temperature, top_p, top_k, row_key, codebook, 0, HALF, STOP,
    )  # fmt: skip
    if window_ptr is not None:
        place = tl.arange(0, 16)
        window = tl.load(window_ptr + row * _WINDOW + place, mask=place < _WINDOW, other=-1)
        if tl.sum((window == entry).to(tl.int32), axis=0) > 0:  # never the stop
            entry = _draw(
                logits, index, keys, units, low, high, stop, stop_index, stop_key, stop_units,
                tl.zeros_like(temperature) + _RAS_TEMPERATURE,
                tl.zeros_like(top_p) + _RAS_TOP_P, top_k, row_key, codebook, 1, HALF, STOP,
            )  # fmt: skip
    tl.store(out_ptr + row, entry)
