"""Sort keys of logits and the best of them, for the sampler's kernel.

A key is an integer: first the logit, then the index turned round, so that no two keys are
equal, larger logits come first and equal ones by rising index.
"""

from __future__ import annotations

import triton
import triton.language as tl

LAST_INDEX = 8191  # indices take 13 bits of a key

_LAST = tl.constexpr(LAST_INDEX)
_INDEX_BITS = tl.constexpr(LAST_INDEX.bit_length())


@triton.jit
def sort_keys(logits, index, HALF: tl.constexpr):
    """Integers in the order of float32 ``logits``, equal ones by falling ``index``.

    HALF: the logits came from bfloat16, so their lower 16 bits are empty.
    """
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)  # -0 equals 0
    if HALF:
        bits = bits >> 16
        order = bits ^ ((bits >> 31) & 0x7FFF)
    else:
        order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return (order << _INDEX_BITS) + (_LAST - index)


@triton.jit
def read_keys(keys, HALF: tl.constexpr):
    """(logits, index) of :func:`sort_keys`."""
    index = _LAST - (keys & _LAST).to(tl.int32)
    order = (keys >> _INDEX_BITS).to(tl.int32)
    value_bits: tl.constexpr = 0x7FFF if HALF else 0x7FFFFFFF
    bits = order ^ ((order >> 31) & value_bits)
    if HALF:
        bits = bits << 16
    return bits.to(tl.float32, bitcast=True), index


@triton.jit
def _exchange(cube, reverse, AXIS: tl.constexpr, DIMS: tl.constexpr):
    """Put the larger of the two keys along AXIS first, or last where ``reverse`` is 0."""
    # Of two keys the other one is their sum less this one, also where the sum wraps.
    other = tl.sum(cube, axis=AXIS, keep_dims=True) - cube
    upper = tl.reshape(tl.arange(0, 2), [1] * AXIS + [2] + [1] * (DIMS - AXIS - 1))
    return tl.where((cube > other) != ((reverse ^ upper) != 0), other, cube)


@triton.jit
def _merge(cube, stage: tl.constexpr, DIMS: tl.constexpr, ALTERNATE: tl.constexpr):
    """Bitonic merge of runs of 2 ** stage keys of a hypercube, largest first.

    ALTERNATE: every second run the other way round, ready for the next stage.
    """
    if ALTERNATE:
        reverse = tl.reshape(tl.arange(0, 2), [1] * (DIMS - stage - 1) + [2] + [1] * stage)
    else:
        reverse = 1
    for step in tl.static_range(stage):
        cube = _exchange(cube, reverse, DIMS - stage + step, DIMS)
    return cube


@triton.jit
def best_keys(keys, LOG_BLOCK: tl.constexpr, LOG_KEPT: tl.constexpr):
    """The 2 ** LOG_KEPT largest of 2 ** LOG_BLOCK keys, largest first.

    Sorted runs of that length meet in pairs: of a falling and a rising one, the larger of
    each two keys are the best of both (Shanbhag, Pirk, Madden 2018, bitonic top-k). As
    tl.topk, with steps that Triton's interpreter runs fast.
    """
    cube = tl.reshape(keys, [2] * LOG_BLOCK)
    for stage in tl.static_range(1, LOG_KEPT + 1):
        cube = _merge(cube, stage, LOG_BLOCK, True)
    for dims in tl.static_range(LOG_BLOCK - 1, LOG_KEPT - 1, -1):
        cube = tl.max(cube, axis=dims - LOG_KEPT)
        cube = _merge(cube, LOG_KEPT, dims, dims > LOG_KEPT)
    return tl.reshape(cube, [2**LOG_KEPT])
