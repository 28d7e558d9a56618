"""The frame's attention, judged by its float32 twin.

Errors are ‖out - twin‖ / ‖twin‖. float32: below 2e-6 (3e-7 seen). bfloat16, on the GPU only,
since the interpreter neither rounds to nearest nor multiplies bfloat16 matrices: at most
1.5 times what the twin's own bfloat16 form errs.
"""

from __future__ import annotations

import pytest
import torch

from fishcli.kernels import reference
from fishcli.kernels.reference import Heads
from fishcli.kernels.triton_frame import frame_attention
from tests.kernels.cases import (
    ROPE_BASE,
    error,
    make_heads,
    normal,
    poisoned_memory,
    wide_heads,
)

FLOAT32 = 2e-6
BFLOAT16 = 1.5
CODEBOOKS = 10
PASSES = [(0, 2), *((start, 1) for start in range(2, CODEBOOKS))]  # start, new
# rows, heads, KV heads, head_dim
SHAPES = [(3, 4, 2, 32), (1, 6, 3, 64), (2, 8, 2, 128), (1, 18, 1, 32)]
GPU_SHAPES = [(1, 32, 8, 128), (33, 32, 8, 128)]


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(4)


@pytest.fixture(params=[*SHAPES, *(pytest.param(s, marks=pytest.mark.gpu) for s in GPU_SHAPES)])
def shape(request, device):
    if device.type == "cpu" and request.param in GPU_SHAPES:
        pytest.skip("too large for the interpreter")
    return request.param


def cache(rows, kv_heads, head_dim, like):
    """Keys and values of a frame that has not begun: NaN throughout."""
    shape = (2, rows, kv_heads, CODEBOOKS, head_dim)
    return torch.full(shape, float("nan")).to(like).unbind()


@pytest.mark.parametrize("norm", [True, False])
def test_a_frame_agrees_with_its_twin(shape, norm, like, generator):
    """All passes of a frame; each judged pass reads what earlier passes of its own stored."""
    rows, q_heads, kv_heads, head_dim = shape
    heads = make_heads(generator, kv_heads, norm, head_dim, like)
    rope = reference.rope_table(CODEBOOKS + 1, head_dim, ROPE_BASE, like.device)
    own, same = cache(rows, kv_heads, head_dim, like), cache(rows, kv_heads, head_dim, like)
    wide = cache(rows, kv_heads, head_dim, like.float())
    for start, new in PASSES:
        width = (q_heads + 2 * kv_heads) * head_dim
        qkv = 2 * normal(generator, rows, new, width, like=like)
        with poisoned_memory():
            out = frame_attention(qkv, heads, rope, *own, start)
        twin = reference.frame_attention(qkv, heads, rope, *same, start)
        judge = reference.frame_attention(qkv.float(), wide_heads(heads), rope, *wide, start)
        exact = like.dtype == torch.float32
        assert out.shape == twin.shape and out.dtype == twin.dtype
        assert error(out, judge) <= (FLOAT32 if exact else BFLOAT16 * error(twin, judge))
        end = start + new
        for mine, theirs, right in zip(own, same, wide, strict=True):
            assert mine[:, :, end:].isnan().all()
            known = right[:, :, :end]
            bound = FLOAT32 if exact else BFLOAT16 * error(theirs[:, :, :end], known)
            assert error(mine[:, :, :end], known) <= bound


def test_a_row_is_the_same_bits_in_any_company(like, generator):
    heads = make_heads(generator, 2, True, 32, like)
    rope = reference.rope_table(CODEBOOKS, 32, ROPE_BASE, like.device)
    qkv = normal(generator, 5, 2, 8 * 32, like=like)
    together = cache(5, 2, 32, like)
    out = frame_attention(qkv, heads, rope, *together, 0)
    for row in range(5):
        alone = cache(1, 2, 32, like)
        assert torch.equal(frame_attention(qkv[row : row + 1], heads, rope, *alone, 0)[0], out[row])
        for mine, theirs in zip(alone, together, strict=True):
            assert torch.equal(mine[0, :, :2], theirs[row, :, :2])


def test_positions_beyond_the_cache_are_refused(device):
    qkv = torch.zeros(1, 1, 8 * 32, device=device)
    rope = reference.rope_table(CODEBOOKS + 1, 32, ROPE_BASE, device)
    keys, values = cache(1, 2, 32, qkv)
    with pytest.raises(AssertionError):
        frame_attention(qkv, Heads(2, 32), rope, keys, values, CODEBOOKS)
