"""Sort keys of logits and the least key that is kept, for the sampler's kernel.

A key is an integer: first the logit, then the index turned round, so that no two keys are
equal, larger logits come first and equal ones by rising index.
"""

from __future__ import annotations

import triton
import triton.language as tl

LAST_INDEX = 8191  # indices take 13 bits of a key

_LAST = tl.constexpr(LAST_INDEX)
_INDEX_BITS = tl.constexpr(LAST_INDEX.bit_length())
_ONE_BITS = tl.constexpr(40)
_ONE = tl.constexpr(1 << 40)
_LINEAR_STEPS = tl.constexpr(6)


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
def logit_of(key, HALF: tl.constexpr):
    """The logit of a key of :func:`sort_keys`, float32."""
    order = (key >> _INDEX_BITS).to(tl.int32)
    value_bits: tl.constexpr = 0x7FFF if HALF else 0x7FFFFFFF
    bits = order ^ ((order >> 31) & value_bits)
    if HALF:
        bits = bits << 16
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def count_and_mass(mass, total):
    """A count of one and the probability mass / total in 2⁻³², as :func:`least_key` adds."""
    return (mass / total * 4294967296.0 + 0.5).to(tl.int64) + _ONE


@triton.jit
def least_key(
    keys,
    units,
    low,
    high,
    stop_key,
    stop_units,
    top_k,
    top_p,
    HALF: tl.constexpr,
    STOP: tl.constexpr,
):
    """The least key that top-k and top-p leave: keys from it on are kept.

    ``high`` is the best key, which always stays, and ``low`` lies below all. ``units`` holds
    for each key its probability in 2⁻³² and above, from _ONE on, a 1 to count it: one integer
    sum tells rank and cumulative probability of a step's key, whatever the order of the sum.
    """
    limit = tl.where(top_p < 1.0, (top_p * 4294967296.0).to(tl.int64), _ONE - 1)
    at_high, at_low = tl.zeros_like(limit) + 1, tl.zeros_like(limit) + 4 * _LAST
    linear = tl.zeros_like(limit) + _LINEAR_STEPS
    while (high - low > 1) & (at_low - at_high > 1):  # with one key between, it is not kept
        # Keys are even in the exponent. Logits are not: at first the middle is theirs.
        middle = low + ((high - low) >> 1)
        logit = 0.5 * logit_of(low, HALF) + 0.5 * logit_of(high, HALF)
        guess = sort_keys(logit, _LAST, HALF)
        middle = tl.where((linear > 0) & (guess > low) & (guess < high), guess, middle)
        linear -= 1
        above = tl.sum(tl.where(keys >= middle, units, 0), axis=0)
        if STOP:
            above += tl.where(stop_key >= middle, stop_units, 0)
        count = above >> _ONE_BITS
        kept = (count <= top_k) & ((above & (_ONE - 1)) <= limit)
        high, at_high = tl.where(kept, middle, high), tl.where(kept, count, at_high)
        low, at_low = tl.where(kept, low, middle), tl.where(kept, at_low, count)
    return high
