"""Decode attention over blocks and the step that stores heads, judged by the float32 twins.

Errors are ‖out - twin‖ / ‖twin‖. float32: below 2e-6 (1e-7 to 1e-6 seen), rounding in another
order. bfloat16, on the GPU only, since the interpreter neither rounds to nearest nor
multiplies bfloat16 matrices: at most 1.5 times what the twin's own bfloat16 form errs.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fishcli.kernels import reference
from fishcli.kernels.reference import Heads, PagedKV
from fishcli.kernels.triton_attention import (
    PARTITION,
    AttentionWorkspace,
    paged_decode_attention,
)
from fishcli.kernels.triton_heads import store_decode_qkv
from tests.kernels.cases import (
    ROPE_BASE,
    error,
    judge_kv,
    make_heads,
    make_paged_kv,
    normal,
    poisoned_memory,
    wide_heads,
)

FLOAT32 = 2e-6
BFLOAT16 = 1.5
# heads, KV heads, head_dim, block_size, newest position of each row, blocks of a table row
SHAPES = [
    (4, 2, 32, 16, [0, 14, 15, 16, 255, 256, 70, 1300], 90),
    (6, 3, 64, 64, [200], 4),
    (8, 2, 128, 32, [511, 3], 20),
    (20, 1, 32, 128, [127, 128], 2),
]
GPU_SHAPES = [
    (32, 8, 128, 16, [0, 15, 16, 255, 256, 300, 1023, 4500], 300),
    (32, 8, 128, 32, list(range(1, 640, 10)), 64),
    (32, 8, 128, 128, [9000], 80),
]


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(3)


@pytest.fixture(params=[*SHAPES, *(pytest.param(s, marks=pytest.mark.gpu) for s in GPU_SHAPES)])
def shape(request, device):
    if device.type == "cpu" and request.param in GPU_SHAPES:
        pytest.skip("too large for the interpreter")
    return request.param


def assert_close(out: Tensor, twin: Tensor, judge: Tensor) -> None:
    """``out`` against the float32 twin, given the twin in the dtype of ``out``."""
    bound = FLOAT32 if out.dtype == torch.float32 else BFLOAT16 * error(twin, judge)
    assert out.dtype == twin.dtype and out.shape == twin.shape
    assert error(out, judge) <= bound


def attend(q: Tensor, kv: PagedKV, last: Tensor, extra: int = 0) -> Tensor:
    """The kernel with a workspace full of NaN, ``extra`` positions larger than it need be."""
    positions = kv.table.shape[1] * kv.block_size + extra
    with poisoned_memory():
        space = AttentionWorkspace.allocate(
            q.shape[0] + 1, q.shape[1], q.shape[2], positions, q.device
        )
        return paged_decode_attention(q, kv, last, space)


def test_attention_agrees_with_its_twin(shape, like, generator):
    heads, kv_heads, head_dim, block_size, newest, max_blocks = shape
    lengths = [position + 1 for position in newest]
    kv = make_paged_kv(generator, kv_heads, block_size, head_dim, lengths, max_blocks, like)
    q = 2 * normal(generator, len(newest), heads, head_dim, like=like)
    last = torch.tensor(newest, device=like.device)
    out = attend(q, kv, last)
    safe = judge_kv(kv)
    judge = reference.paged_decode_attention(q.float(), safe, last)
    same = PagedKV(safe.keys.to(like), safe.values.to(like), kv.table)
    twin = reference.paged_decode_attention(q, same, last)
    assert_close(out, twin, judge)
    for row in range(len(newest)):  # a short row's error must not drown in a long one's norm
        assert_close(out[row], twin[row], judge[row])


def test_attention_survives_large_scores(like, generator):
    """Scores of several hundred: only differences from the largest may be raised to powers."""
    kv = make_paged_kv(generator, 2, 16, 32, [600], 40, like)
    q = 100 * normal(generator, 1, 4, 32, like=like)
    last = torch.tensor([599], device=like.device)
    out = attend(q, kv, last)
    judge = reference.paged_decode_attention(q.float(), judge_kv(kv), last)
    assert error(out, judge) < (2e-5 if like.dtype == torch.float32 else 1e-2)


def test_a_row_attends_alike_in_any_company(like, generator):
    """Same bits alone, in another slot, with a wider table and in a larger workspace."""
    newest = [PARTITION - 1, 40, 3 * PARTITION + 5, PARTITION]
    lengths = [position + 1 for position in newest]
    kv = make_paged_kv(generator, 2, 16, 32, lengths, max(lengths) // 16 + 1, like)
    q = normal(generator, 4, 4, 32, like=like)
    last = torch.tensor(newest, device=like.device)
    together = attend(q, kv, last)
    for row in range(4):
        only = slice(row, row + 1)
        wide = torch.nn.functional.pad(kv.table[only], (0, 150))
        alone = attend(q[only], PagedKV(kv.keys, kv.values, wide), last[only], extra=5000)
        assert torch.equal(alone[0], together[row])


def test_programs_may_take_several_partitions(device, generator, monkeypatch):
    """How many programs share a row's partitions does not show in the result."""
    monkeypatch.setattr("fishcli.kernels.triton_attention.PROGRAMS", 0)
    like = torch.empty(0, device=device)
    kv = make_paged_kv(generator, 1, 128, 32, [5 * PARTITION + 7], 40, like)
    q = normal(generator, 1, 2, 32, like=like)
    last = torch.tensor([5 * PARTITION + 6], device=device)
    few = attend(q, kv, last)
    monkeypatch.setattr("fishcli.kernels.triton_attention.PROGRAMS", 4096)
    assert torch.equal(few, attend(q, kv, last))
    judge = reference.paged_decode_attention(q, judge_kv(kv), last)
    assert error(few, judge) < FLOAT32


@pytest.mark.parametrize(
    ("partition", "tile", "programs"),
    [(128, 32, 0), (256, 32, 2048), (256, 64, 1024), (512, 16, 8), (512, 128, 12)],
)
def test_other_settings_agree_too(partition, tile, programs, like, generator, monkeypatch):
    """Tiles within a block and tiles of several blocks, whatever the constants are."""
    for name, value in (("PARTITION", partition), ("TILE", tile), ("PROGRAMS", programs)):
        monkeypatch.setattr(f"fishcli.kernels.triton_attention.{name}", value)
    newest = [299, 1030, 511, 512, 0]
    lengths = [position + 1 for position in newest]
    kv = make_paged_kv(generator, 2, 32, 32, lengths, 36, like)
    q = 2 * normal(generator, len(newest), 8, 32, like=like)
    last = torch.tensor(newest, device=like.device)
    safe = judge_kv(kv)
    judge = reference.paged_decode_attention(q.float(), safe, last)
    same = PagedKV(safe.keys.to(like), safe.values.to(like), kv.table)
    out, twin = attend(q, kv, last), reference.paged_decode_attention(q, same, last)
    for row in range(len(newest)):
        assert_close(out[row], twin[row], judge[row])


def test_tickets_are_zero_between_calls(device, generator):
    like = torch.empty(0, device=device)
    lengths = [3 * PARTITION, 5, PARTITION + 1]
    kv = make_paged_kv(generator, 2, 128, 32, lengths, 3 * PARTITION // 128, like)
    q = normal(generator, 3, 4, 32, like=like)
    space = AttentionWorkspace.allocate(3, 4, 32, 3 * PARTITION, device)
    paged_decode_attention(q, kv, torch.tensor(lengths, device=device) - 1, space)
    assert not space.tickets.any()


def test_one_workspace_serves_call_after_call(device, generator):
    """As it serves the layers of a model, whatever rows it held before."""
    like = torch.empty(0, device=device)
    space = AttentionWorkspace.allocate(3, 4, 32, 1024, device)
    for lengths in ([700, 600, 5], [5, 999], [700, 600, 5]):
        kv = make_paged_kv(generator, 2, 32, 32, lengths, 32, like)
        q = normal(generator, len(lengths), 4, 32, like=like)
        last = torch.tensor(lengths, device=device) - 1
        judge = reference.paged_decode_attention(q, judge_kv(kv), last)
        assert error(paged_decode_attention(q, kv, last, space), judge) < FLOAT32


def test_a_workspace_too_small_is_refused(device, generator):
    like = torch.empty(0, device=device)
    kv = make_paged_kv(generator, 2, 16, 32, [5], 40, like)
    q, last = normal(generator, 1, 4, 32, like=like), torch.tensor([4], device=device)
    space = AttentionWorkspace.allocate(1, 4, 32, 512, device)  # the table spans 640
    with pytest.raises(AssertionError, match="640"):
        paged_decode_attention(q, kv, last, space)


def stored(function, qkv: Tensor, heads: Heads, rope: Tensor, last: Tensor, kv: PagedKV):
    """q, and the blocks after ``function`` wrote into a copy of them."""
    kv = PagedKV(kv.keys.clone(), kv.values.clone(), kv.table)
    return function(qkv, heads, rope, last, kv), kv.keys, kv.values


@pytest.mark.parametrize("norm", [True, False])
def test_stored_heads_agree_with_their_twin(shape, norm, like, generator):
    heads_count, kv_heads, head_dim, block_size, newest, max_blocks = shape
    lengths = [position + 1 for position in newest]
    kv = make_paged_kv(generator, kv_heads, block_size, head_dim, lengths, max_blocks, like)
    for row, position in enumerate(newest):  # as before the step: not written yet
        block = int(kv.table[row, position // block_size])
        kv.keys[block, :, position % block_size] = float("nan")
        kv.values[block, :, position % block_size] = float("nan")
    heads = make_heads(generator, kv_heads, norm, head_dim, like)
    width = (heads_count + 2 * kv_heads) * head_dim
    qkv = normal(generator, len(newest), width, like=like)
    rope = reference.rope_table(max(newest) + 1, head_dim, ROPE_BASE, like.device)
    last = torch.tensor(newest, device=like.device)
    with poisoned_memory():
        q, keys, values = stored(store_decode_qkv, qkv, heads, rope, last, kv)
    twins = stored(reference.store_decode_qkv, qkv, heads, rope, last, kv)
    wide = PagedKV(kv.keys.float(), kv.values.float(), kv.table)
    judges = stored(reference.store_decode_qkv, qkv.float(), wide_heads(heads), rope, last, wide)
    for out, twin, judge in zip((q, keys, values), twins, judges, strict=True):
        assert torch.equal(out.isnan(), twin.isnan())  # nothing else was written
        assert_close(out.nan_to_num(), twin.nan_to_num(), judge.nan_to_num())


def test_a_row_is_stored_alike_in_any_company(like, generator):
    newest = [0, 17, 31]
    lengths = [position + 1 for position in newest]
    kv = make_paged_kv(generator, 2, 16, 32, lengths, 4, like)
    heads = make_heads(generator, 2, True, 32, like)
    qkv = normal(generator, 3, 8 * 32, like=like)
    rope = reference.rope_table(40, 32, ROPE_BASE, like.device)
    last = torch.tensor(newest, device=like.device)
    q, keys, values = stored(store_decode_qkv, qkv, heads, rope, last, kv)
    for row, position in enumerate(newest):
        only = slice(row, row + 1)
        own = PagedKV(kv.keys, kv.values, kv.table[only])
        alone = stored(store_decode_qkv, qkv[only], heads, rope, last[only], own)
        place = (int(kv.table[row, position // 16]), slice(None), position % 16)
        assert torch.equal(alone[0][0], q[row])
        assert torch.equal(alone[1][place], keys[place])
        assert torch.equal(alone[2][place], values[place])


def test_no_rows_are_no_work(device):
    kv = PagedKV(*torch.zeros(2, 1, 2, 16, 32, device=device), torch.zeros(0, 4).int().to(device))
    none = torch.zeros(0, dtype=torch.int64, device=device)
    rope = reference.rope_table(4, 32, ROPE_BASE, device)
    qkv = torch.zeros(0, 8 * 32, device=device)
    q = store_decode_qkv(qkv, Heads(2, 32), rope, none, kv)
    assert q.shape == attend(q, kv, none).shape == (0, 4, 32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_captured_step_follows_the_positions(device, dtype, generator):
    """One graph, replayed as rows grow past blocks and partitions, equals plain calls."""
    if device.type == "cpu":
        pytest.skip("graphs are of CUDA")
    like = torch.empty(0, dtype=dtype, device=device)
    kv = make_paged_kv(generator, 8, 32, 128, [900, 900], 40, like)
    q = normal(generator, 2, 32, 128, like=like)
    last = torch.tensor([3, 700], device=device)
    space = AttentionWorkspace.allocate(2, 32, 128, 40 * 32, device)
    paged_decode_attention(q, kv, last, space)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_decode_attention(q, kv, last, space)
    for newest in ([3, 700], [511, 512], [512, 899], [0, 31]):
        last.copy_(torch.tensor(newest))
        graph.replay()
        assert torch.equal(out, attend(q, kv, last))
