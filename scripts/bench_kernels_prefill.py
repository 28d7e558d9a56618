"""Times prefill attention at S2-Pro's sizes, next to torch's own and to its plain twin.

    python scripts/bench_kernels_prefill.py            # the pinned tiles
    python scripts/bench_kernels_prefill.py --sweep    # other tiles too

A figure is the median over replays of a CUDA graph of up to 36 launches, each on buffers of
its own as the layers of the model are, with the L2 cache overwritten before every replay.
torch's scaled_dot_product_attention has its keys and values side by side before the clock
starts; the twin gathers them and masks. The floor is the larger of the bytes that must move at
4.22 TB/s and the products of visible pairs at 790 TFLOP/s. Errors are ‖out - twin‖ / ‖twin‖
against the twin in float32. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import isnan
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from fishcli.kernels import reference, triton_prefill
from fishcli.kernels.reference import PagedKV
from fishcli.kernels.triton_prefill import Tiles

SIZES = ((1, 64), (4, 64), (8, 64), (1, 256), (4, 256), (8, 512))  # rows, new positions
STARTS = (0, 288)
LAYERS = 36
Q_HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
BLOCK_SIZE = 32
TABLE_POSITIONS = 2048  # what a table can name; rows use less
BYTES_PER_SECOND, FLOPS_PER_SECOND = 4.22e12, 790e12
POOL_BYTES = 8e9  # bounds the number of launches whose buffers differ
REPLAYS = 25
DTYPE = torch.bfloat16
DEVICE = "cuda"
# Rows, new positions, start.
SWEEP_SIZES = ((1, 64, 0), (4, 64, 288), (1, 256, 0), (4, 256, 0), (8, 512, 0), (8, 512, 288))
SWEEP = [
    Tiles(queries, keys, warps, stages)
    for queries, keys, warps in (
        (64, 64, 4),
        (64, 32, 4),
        (64, 128, 4),
        (64, 128, 8),
        (128, 64, 8),
        (128, 128, 8),
        (32, 64, 4),
        (16, 64, 4),
    )
    for stages in (2, 3, 5)
]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Inputs of every layer, in blocks and side by side.

    q: (rows, new, heads, head_dim) a layer; keys, values of ``whole``: (rows, kv_heads,
    start + new, head_dim) a layer.
    """

    start: int
    starts: Tensor
    q: list[Tensor]
    kv: list[PagedKV]
    whole: list[tuple[Tensor, Tensor]]

    def fused(self, layer: int) -> Tensor:
        return triton_prefill.paged_prefill_attention(self.q[layer], self.kv[layer], self.starts)

    def plain(self, layer: int) -> Tensor:
        return reference.paged_prefill_attention(
            self.q[layer], trimmed(self.kv[layer], self.start + self.q[0].shape[1]), self.starts
        )

    def torch(self, layer: int) -> Tensor:
        """Returns (rows, heads, new, head_dim)."""
        q, (keys, values) = self.q[layer].transpose(1, 2), self.whole[layer]
        if self.start == 0:
            return F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)
        bias = causal_lower_right(q.shape[2], keys.shape[2])
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=bias, enable_gqa=True)

    def judge(self) -> Tensor:
        kv = trimmed(self.kv[0], self.start + self.q[0].shape[1])
        wide = PagedKV(kv.keys.float(), kv.values.float(), kv.table)
        return reference.paged_prefill_attention(self.q[0].float(), wide, self.starts)

    def floor(self) -> float:
        """Microseconds that no form can beat."""
        rows, new = self.q[0].shape[:2]
        moved = 2 * rows * HEAD_DIM * (2 * KV_HEADS * (self.start + new) + 2 * Q_HEADS * new)
        pairs = new * self.start + new * (new + 1) // 2
        products = 4 * rows * Q_HEADS * HEAD_DIM * pairs
        return 1e6 * max(moved / BYTES_PER_SECOND, products / FLOPS_PER_SECOND)


def trimmed(kv: PagedKV, positions: int) -> PagedKV:
    """For the twin, which reads all that the table can name: no wider than needed."""
    return PagedKV(kv.keys, kv.values, kv.table[:, : -(-positions // BLOCK_SIZE)])


def make_case(rows: int, new: int, start: int) -> Case:
    """Rows of ``start + new`` positions in shuffled blocks, with a wide table."""
    used = -(-(start + new) // BLOCK_SIZE)
    table = torch.zeros(rows, TABLE_POSITIONS // BLOCK_SIZE, dtype=torch.int32, device=DEVICE)
    table[:, :used] = 1 + torch.randperm(rows * used, device=DEVICE).view(rows, used).int()
    layer_bytes = 2 * 2 * 2 * rows * used * BLOCK_SIZE * KV_HEADS * HEAD_DIM
    q, kv, whole = [], [], []
    for _ in range(int(min(LAYERS, max(4, POOL_BYTES // layer_bytes)))):
        layer = PagedKV(
            *(normal(1 + rows * used, KV_HEADS, BLOCK_SIZE, HEAD_DIM) for _ in range(2)), table
        )
        kv.append(layer)
        q.append(2 * normal(rows, new, Q_HEADS, HEAD_DIM))
        whole.append(
            (
                side_by_side(layer.keys, layer, start + new),
                side_by_side(layer.values, layer, start + new),
            )
        )
    return Case(start, torch.full((rows,), start, device=DEVICE), q, kv, whole)


def side_by_side(cache: Tensor, kv: PagedKV, positions: int) -> Tensor:
    """(rows, kv_heads, positions, head_dim) out of blocks."""
    rows = cache[trimmed(kv, positions).table.long()].transpose(1, 2).flatten(2, 3)
    return rows[:, :, :positions].contiguous()


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=DTYPE)


def microseconds(call: Callable[[int], object], layers: int) -> float:
    """Median time of ``call``, run for one layer after another in a graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for layer in range(2):
            call(layer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for layer in range(layers):
            call(layer)
    waste = torch.empty(1 << 28, dtype=torch.uint8, device=DEVICE)  # several times the L2
    times = []
    for _ in range(REPLAYS + 3):
        waste.zero_()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 1e3 / layers)
    return statistics.median(times[3:])


def attempt(call: Callable[[int], object], layers: int) -> float:
    """:func:`microseconds`, or NaN for what this torch or chip can't do."""
    try:
        return microseconds(call, layers)
    except Exception as error:  # noqa: BLE001 - a rival or tile that fails is no answer
        torch.cuda.synchronize()
        print(f"  {type(error).__name__}: {str(error)[:160]}", file=sys.stderr)
        return float("nan")


def error(actual: Tensor, exact: Tensor) -> float:
    return float((actual.double() - exact.double()).norm() / exact.double().norm())


def report(rows: int, new: int, start: int) -> bool:
    """Print a line; False where the kernel errs more than 1.5 times what its twin does."""
    case = make_case(rows, new, start)
    layers = len(case.q)
    judge = case.judge()
    fused_error, twin_error = error(case.fused(0), judge), error(case.plain(0), judge)
    right = fused_error <= 1.5 * twin_error
    fused, floor = microseconds(case.fused, layers), case.floor()
    rival, plain = attempt(case.torch, layers), attempt(case.plain, min(4, layers))
    torch_error = float("nan") if isnan(rival) else error(case.torch(0).transpose(1, 2), judge)
    print(
        f"{rows} × {new:3} from {start:3}: {fused:7.2f} µs, torch {rival:7.2f}, "
        f"plain {plain:8.2f}, floor {floor:6.2f} ({100 * floor / fused:3.0f} %), errors "
        f"{fused_error:.1e}, {torch_error:.1e}, {twin_error:.1e}{'' if right else '  WRONG'}",
        flush=True,
    )
    return right


def sweep() -> None:
    """Other tiles than the pinned ones; take the best over by hand."""
    print("queries, keys, warps, stages; µs by", *(f"{r} × {n} + {s}" for r, n, s in SWEEP_SIZES))
    cases = [make_case(*size) for size in SWEEP_SIZES]
    for tiles in SWEEP:
        with mock.patch.object(triton_prefill, "HALF", tiles):
            times = [attempt(case.fused, len(case.q)) for case in cases]
        sizes = f"{tiles.queries:3} {tiles.keys:3} {tiles.warps} {tiles.stages}"
        print(f"  {sizes}", *(f"{time:8.2f}" for time in times), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="also time other tiles")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a CUDA device", file=sys.stderr)
        return 2
    print(torch.cuda.get_device_name(), torch.__version__, triton_prefill.HALF)
    torch.manual_seed(0)
    right = [report(rows, new, start) for start in STARTS for rows, new in SIZES]
    if arguments.sweep:
        sweep()
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(main())
