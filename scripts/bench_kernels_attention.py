"""Times the attention kernels at S2-Pro's sizes, next to their plain twins and byte floors.

    python scripts/bench_kernels_attention.py            # every kernel, pinned settings
    python scripts/bench_kernels_attention.py --sweep    # other settings of the kernels too

A figure is the median over replays of a CUDA graph of up to 36 launches, each on buffers of
its own as the layers of the model are, with the L2 cache overwritten before every replay.
Floors are the bytes that must move at 4.22 TB/s. Errors are ‖out - twin‖ / ‖twin‖ against
the twin in float32, beside the error of the twin in bfloat16. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from fishcli.kernels import reference, triton_attention, triton_frame, triton_heads
from fishcli.kernels.reference import Heads, PagedKV

ROWS = (1, 8, 64, 128, 256)
POSITIONS = (300, 1000)
LAYERS = 36
Q_HEADS, KV_HEADS, HEAD_DIM, CODEBOOKS = 32, 8, 128, 10
WIDTH = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM
BLOCK_SIZE = 32
TABLE_POSITIONS = 2048  # what a table can name; rows use less
BYTES_PER_SECOND = 4.22e12
POOL_BYTES = 16e9  # bounds the number of launches whose buffers differ
REPLAYS = 25
DTYPE = torch.bfloat16
DEVICE = "cuda"

# PARTITION, TILE, STAGES, WARPS of triton_attention.
ATTENTION_SETTINGS = [
    (256, 64, 5, 4),
    (256, 64, 3, 4),
    (256, 64, 5, 8),
    (256, 32, 5, 4),
    (256, 32, 7, 4),
    (256, 128, 3, 8),
    (128, 64, 5, 4),
    (128, 64, 3, 4),
    (128, 32, 5, 4),
    (128, 32, 7, 2),
    (128, 128, 3, 8),
    (512, 64, 5, 4),
]
FRAME_WARPS = (1, 2, 4)
HEADS_A_PROGRAM = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one size: a call a layer, the same by the twin, and what must move."""

    name: str
    calls: list[Callable[[], object]]
    plain: list[Callable[[], object]]
    moved: float  # bytes a call
    outputs: Callable[[], tuple[Tensor, Tensor, Tensor]]  # kernel, twin, float32 twin


def microseconds(calls: list[Callable[[], object]]) -> float:
    """Median time of one of ``calls``, run one after another in a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    waste = torch.empty(1 << 28, dtype=torch.uint8, device=DEVICE)  # several times the L2
    times = []
    for _ in range(REPLAYS + 3):
        waste.zero_()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 1e3 / len(calls))
    return statistics.median(times[3:])


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=DTYPE)


def layers_of(layer_bytes: float) -> int:
    """How many layers have buffers of their own."""
    return int(min(LAYERS, max(4, POOL_BYTES // layer_bytes)))


def paged_layers(rows: int, positions: int) -> list[PagedKV]:
    """Layers whose rows have ``positions`` positions in shuffled blocks, with a wide table."""
    used = -(-positions // BLOCK_SIZE)
    shape = (rows * used + 1, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    first = normal(2, *shape)
    table = torch.zeros(rows, TABLE_POSITIONS // BLOCK_SIZE, dtype=torch.int32, device=DEVICE)
    table[:, :used] = 1 + torch.randperm(rows * used, device=DEVICE).view(rows, used).int()
    count = layers_of(first.nbytes)
    return [PagedKV(*(first.clone() if i else first), table) for i in range(count)]


def trimmed(kv: PagedKV, positions: int) -> PagedKV:
    """For the twin, which reads all that the table can name: no wider than needed."""
    return PagedKV(kv.keys, kv.values, kv.table[:, : -(-positions // BLOCK_SIZE)])


def widened(kv: PagedKV) -> PagedKV:
    """In float32, for the judge."""
    return PagedKV(kv.keys.float(), kv.values.float(), kv.table)


def attention_case(rows: int, positions: int) -> Case:
    layers = paged_layers(rows, positions)
    queries = [2 * normal(rows, Q_HEADS, HEAD_DIM) for _ in layers]
    last = torch.full((rows,), positions - 1, device=DEVICE)
    space = triton_attention.AttentionWorkspace.allocate(
        rows, Q_HEADS, HEAD_DIM, TABLE_POSITIONS, torch.device(DEVICE)
    )

    def fused(i: int) -> Tensor:
        return triton_attention.paged_decode_attention(queries[i], layers[i], last, space)

    def plain(i: int) -> Tensor:
        kv = trimmed(layers[i], positions)
        return reference.paged_decode_attention(queries[i], kv, last)

    def outputs() -> tuple[Tensor, Tensor, Tensor]:
        wide = widened(trimmed(layers[0], positions))
        judge = reference.paged_decode_attention(queries[0].float(), wide, last)
        return fused(0), plain(0), judge

    moved = 2 * rows * HEAD_DIM * (2 * KV_HEADS * positions + 2 * Q_HEADS)
    return Case(
        f"attention, {positions} positions",
        [lambda i=i: fused(i) for i in range(len(layers))],
        [lambda i=i: plain(i) for i in range(min(4, len(layers)))],
        moved,
        outputs,
    )


def store_case(rows: int) -> Case:
    layers = paged_layers(rows, 300)
    projections = [normal(rows, WIDTH) for _ in layers]
    heads = Heads(KV_HEADS, HEAD_DIM, normal(HEAD_DIM), normal(HEAD_DIM), 1e-6)
    wide_heads = Heads(KV_HEADS, HEAD_DIM, heads.q_norm.float(), heads.k_norm.float(), 1e-6)
    rope = reference.rope_table(TABLE_POSITIONS, HEAD_DIM, 1e6, torch.device(DEVICE))
    last = torch.randint(0, 300, (rows,), device=DEVICE)

    def call(function: Callable[..., Tensor], i: int) -> Tensor:
        return function(projections[i], heads, rope, last, layers[i])

    def outputs() -> tuple[Tensor, Tensor, Tensor]:
        wide = widened(layers[0])
        judge = reference.store_decode_qkv(projections[0].float(), wide_heads, rope, last, wide)
        out = call(triton_heads.store_decode_qkv, 0)
        return out, call(reference.store_decode_qkv, 0), judge

    return Case(
        "store heads",
        [lambda i=i: call(triton_heads.store_decode_qkv, i) for i in range(len(layers))],
        [lambda i=i: call(reference.store_decode_qkv, i) for i in range(min(8, len(layers)))],
        rows * (2 * 2 * WIDTH + 4 * HEAD_DIM),
        outputs,
    )


def frame_case(rows: int, start: int, new: int) -> Case:
    projections = [normal(rows, new, WIDTH) for _ in range(LAYERS)]
    caches = [normal(2, rows, KV_HEADS, CODEBOOKS, HEAD_DIM) for _ in range(LAYERS)]
    heads = Heads(KV_HEADS, HEAD_DIM)
    rope = reference.rope_table(CODEBOOKS + 1, HEAD_DIM, 1e6, torch.device(DEVICE))

    def call(function: Callable[..., Tensor], i: int) -> Tensor:
        return function(projections[i], heads, rope, *caches[i], start)

    def outputs() -> tuple[Tensor, Tensor, Tensor]:
        keys, values = caches[0].float()
        judge = reference.frame_attention(projections[0].float(), heads, rope, keys, values, start)
        out = call(triton_frame.frame_attention, 0)
        return out, call(reference.frame_attention, 0), judge

    cached = 2 * KV_HEADS * (start + new)
    return Case(
        f"frame, positions {start} to {start + new - 1}",
        [lambda i=i: call(triton_frame.frame_attention, i) for i in range(LAYERS)],
        [lambda i=i: call(reference.frame_attention, i) for i in range(8)],
        2 * rows * HEAD_DIM * (new * (2 * Q_HEADS + 2 * KV_HEADS) + cached),
        outputs,
    )


def cases() -> Iterator[tuple[int, Callable[[], Case]]]:
    """Rows, and what makes the case: one at a time is in memory."""
    for rows in ROWS:
        yield rows, lambda rows=rows: store_case(rows)
        for positions in POSITIONS:
            yield rows, lambda rows=rows, positions=positions: attention_case(rows, positions)
        yield rows, lambda rows=rows: frame_case(rows, 0, 2)
        yield rows, lambda rows=rows: frame_case(rows, CODEBOOKS - 1, 1)


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def report(rows: int, case: Case) -> bool:
    """Print a line; False where the kernel errs more than 1.5 times what its twin does."""
    out, twin, judge = case.outputs()
    fused_error, twin_error = error(out, judge), error(twin, judge)
    right = fused_error <= 1.5 * twin_error
    fused, plain = microseconds(case.calls), microseconds(case.plain)
    floor = case.moved / BYTES_PER_SECOND * 1e6
    print(
        f"{case.name:26} {rows:4} rows {fused:8.2f} µs, plain {plain:9.2f}, "
        f"floor {floor:7.2f} ({100 * floor / fused:3.0f} %), "
        f"error {fused_error:.1e}, twin's {twin_error:.1e}{'' if right else '  WRONG'}",
        flush=True,
    )
    return right


@contextmanager
def settings(module: object, **values: int) -> Iterator[None]:
    with mock.patch.multiple(module, **values):
        yield


def sweep() -> None:
    """Other settings than the pinned ones; each line lists all row counts."""
    for positions in POSITIONS:
        print(f"attention, {positions} positions: PARTITION, TILE, STAGES, WARPS; µs by rows")
        for partition, tile, stages, warps in ATTENTION_SETTINGS:
            chosen = {"PARTITION": partition, "TILE": tile, "STAGES": stages, "WARPS": warps}
            with settings(triton_attention, **chosen):
                make = partial(attention_case, positions=positions)
                _sweep_line((partition, tile, stages, warps), make)
    print("frame, position 9: WARPS; µs by rows")
    for warps in FRAME_WARPS:
        with settings(triton_frame, WARPS=warps):
            _sweep_line((warps,), lambda rows: frame_case(rows, CODEBOOKS - 1, 1))
    print("store heads: HEADS_A_PROGRAM; µs by rows")
    for group in HEADS_A_PROGRAM:
        with settings(triton_heads, HEADS_A_PROGRAM=group):
            _sweep_line((group,), store_case)


def _sweep_line(chosen: tuple[int, ...], make: Callable[[int], Case]) -> None:
    times = [(rows, microseconds(make(rows).calls)) for rows in (1, 8, 64, 256)]
    print(f"  {chosen!s:20}", *(f"{rows:4}: {time:8.2f}" for rows, time in times), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="also time other kernel settings")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a CUDA device", file=sys.stderr)
        return 2
    print(torch.cuda.get_device_name(), torch.__version__)
    torch.manual_seed(0)
    right = [report(rows, make()) for rows, make in cases()]
    if arguments.sweep:
        sweep()
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(main())
