"""Causal attention of several new positions a row over blocks, judged by the float64 twin.

Errors are ‖out - twin‖ / ‖twin‖. float32: below 2e-6, rounding in another order. bfloat16, on
the GPU only, since the interpreter neither rounds to nearest nor multiplies bfloat16
matrices: at most 1.5 times what the twin's own bfloat16 form errs.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fishcli.kernels import reference
from fishcli.kernels.reference import PagedKV
from fishcli.kernels.triton_prefill import paged_prefill_attention
from tests.kernels.cases import error, judge_kv, make_paged_kv, normal, poisoned_memory

FLOAT32 = 2e-6
LONG = 2048  # positions; beyond them the error may grow with the root of the number of sums
BFLOAT16 = 1.5
# heads, KV heads, head_dim, block_size, (start, new positions) of each row, blocks of a table row
SHAPES = [
    (4, 2, 32, 16, [(0, 37), (16, 5), (31, 1), (101, 37), (0, 16)], 12),
    (6, 3, 64, 64, [(64, 17)], 2),
    (8, 2, 128, 32, [(288, 9), (383, 1), (3, 34)], 12),  # padding lies beyond the table
    (20, 1, 32, 128, [(120, 8), (127, 1)], 1),  # here too
    (4, 2, 32, 32, [(1300, 3)], 44),
]
GPU_SHAPES = [
    (32, 8, 128, 32, [(0, 1), (0, 64), (0, 63), (288, 64), (300, 17), (1, 64)], 12),
    (32, 8, 128, 16, [(0, 512), (288, 511), (2000, 100)], 160),
    (32, 8, 128, 32, [(0, 4096)], 128),
    (32, 8, 128, 128, [(32000, 16)], 256),
]


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(4)


@pytest.fixture(params=[*SHAPES, *(pytest.param(s, marks=pytest.mark.gpu) for s in GPU_SHAPES)])
def shape(request, device):
    if device.type == "cpu" and request.param in GPU_SHAPES:
        pytest.skip("too large for the interpreter")
    return request.param


def attend(q: Tensor, kv: PagedKV, starts: Tensor) -> Tensor:
    """The kernel, its output full of NaN before, its table a part of a wider one.

    Memory ends long before the blocks that the other part names: reading one is fatal.
    """
    wide = torch.nn.functional.pad(kv.table, (0, 4), value=2**30)
    with poisoned_memory():
        return paged_prefill_attention(q, PagedKV(kv.keys, kv.values, wide[:, :-4]), starts)


def judged(q: Tensor, kv: PagedKV, starts: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """The twin in another dtype."""
    safe = judge_kv(kv)
    wide = PagedKV(safe.keys.to(dtype), safe.values.to(dtype), kv.table)
    return reference.paged_prefill_attention(q.to(dtype), wide, starts)


def make_case(
    generator: torch.Generator,
    shape: tuple[int, int, int, int, list[tuple[int, int]], int],
    like: Tensor,
) -> tuple[Tensor, PagedKV, Tensor]:
    """(q, kv, starts); what is beyond a row's new positions is NaN, also its queries."""
    heads, kv_heads, head_dim, block_size, rows, max_blocks = shape
    lengths = [start + new for start, new in rows]
    kv = make_paged_kv(generator, kv_heads, block_size, head_dim, lengths, max_blocks, like)
    longest = max(new for _, new in rows)
    q = 2 * normal(generator, len(rows), longest, heads, head_dim, like=like)
    for row, (_, new) in enumerate(rows):
        q[row, new:] = float("nan")
    return q, kv, torch.tensor([start for start, _ in rows], device=like.device)


def test_attention_agrees_with_its_twin(shape, like, generator):
    q, kv, starts = make_case(generator, shape, like)
    out = attend(q, kv, starts)
    assert out.dtype == q.dtype and out.shape == q.shape
    judge = judged(q, kv, starts)
    twin = judged(q, kv, starts, q.dtype)
    for row, (start, new) in enumerate(shape[4]):
        exact = judge[row, :new]
        assert exact.isfinite().all()
        if q.dtype == torch.float32:
            bound = FLOAT32 * max(1.0, (start + new) / LONG) ** 0.5
        else:
            bound = BFLOAT16 * error(twin[row, :new], exact)
        assert error(out[row, :new], exact) <= bound, row


def test_attention_survives_large_scores(like, generator):
    """Scores of several hundred: only differences from the largest may be raised to powers."""
    q, kv, starts = make_case(generator, (4, 2, 32, 16, [(70, 20)], 6), like)
    q *= 50
    out = attend(q, kv, starts)
    assert error(out, judged(q, kv, starts)) < (2e-5 if like.dtype == torch.float32 else 1e-2)


def test_a_row_attends_alike_in_any_company(like, generator):
    """Same bits alone, in another slot, with more padding and with a wider table."""
    rows = [(0, 37), (48, 70), (33, 1), (64, 16)]
    q, kv, starts = make_case(generator, (4, 2, 32, 16, rows, 9), like)
    together = attend(q, kv, starts)
    for row, (_, new) in enumerate(rows):
        only = slice(row, row + 1)
        wide = torch.nn.functional.pad(kv.table[only], (0, 150), value=int(kv.table[0, -1]))
        wide_kv = PagedKV(kv.keys, kv.values, wide)
        for columns in (new, new + 75):
            padded = torch.full((1, columns, 4, 32), float("nan")).to(like)
            padded[0, :new] = q[row, :new]
            alone = attend(padded, wide_kv, starts[only])
            assert torch.equal(alone[0, :new], together[row, :new])


def test_later_positions_change_no_bit(like, generator):
    """A query sees its own position and those before, which is also where a NaN shows."""
    rows = [(40, 90)]
    q, kv, starts = make_case(generator, (4, 2, 32, 16, rows, 9), like)
    before = attend(q, kv, starts)
    for position in (40, 63, 64, 129):
        broken = PagedKV(kv.keys.clone(), kv.values.clone(), kv.table)
        block, inside = int(kv.table[0, position // 16]), position % 16
        broken.keys[block, :, inside] = broken.values[block, :, inside] = float("nan")
        after = attend(q, broken, starts)
        assert torch.equal(after[:, : position - 40], before[:, : position - 40])
        assert after[:, position - 40 :].isnan().all()


def test_no_rows_and_no_positions_give_nothing(device, generator):
    like = torch.empty(0, device=device)
    q, kv, starts = make_case(generator, (4, 2, 32, 16, [(0, 5)], 1), like)
    assert attend(q[:, :0], kv, starts).shape == (1, 0, 4, 32)
    none = PagedKV(kv.keys, kv.values, kv.table[:0])
    assert attend(q[:0], none, starts[:0]).shape == (0, 5, 4, 32)


@pytest.mark.gpu
def test_a_captured_call_follows_starts_and_table(device, generator):
    if device.type != "cuda":
        pytest.skip("CUDA graphs need a GPU")
    like = torch.empty(0, dtype=torch.bfloat16, device=device)
    shape = (32, 8, 128, 32, [(0, 64), (288, 64)], 11)
    q, kv, starts = make_case(generator, shape, like)
    expected = attend(q, kv, starts)
    here, table = torch.zeros_like(starts), torch.full_like(kv.table, int(kv.table[0, 0]))
    static = PagedKV(kv.keys, kv.values, table)
    paged_prefill_attention(q, static, here)  # compiled before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_prefill_attention(q, static, here)
    here.copy_(starts)
    table.copy_(kv.table)
    graph.replay()
    assert torch.equal(out, expected)
