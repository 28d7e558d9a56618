"""Times the attention kernels at S2-Pro's sizes, next to their plain twins and byte floors.

    python scripts/bench_kernels_attention.py                      # every kernel, as set
    python scripts/bench_kernels_attention.py --sweep attention    # candidates side by side
    python scripts/bench_kernels_attention.py --sweep others       # frame and store kernels

A figure is the median over replays of a CUDA graph of up to 36 launches, each on buffers of
its own as the layers of the model are, with the L2 cache overwritten before every replay.
Floors are the bytes that must move at 4.22 TB/s. Errors are ‖out - twin‖ / ‖twin‖ against
the twin in float32, beside the error of the twin in bfloat16. Needs a CUDA device.

The attention sweep prints each measurement as it is made, then a line a candidate; a * marks
the best of a column. A candidate that fails to compile, errs too much, or whose rows depend
on their company is named and left out; --seconds bounds the whole sweep.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
TABLE_POSITIONS = 1024  # what a table can name; rows use less
BYTES_PER_SECOND = 4.22e12
POOL_BYTES = 16e9  # bounds the number of launches whose buffers differ
REPLAYS = 25
DTYPE = torch.bfloat16
DEVICE = "cuda"

# PARTITION, TILE, STAGES, WARPS, PROGRAMS of triton_attention; the first is its default.
ATTENTION_NAMES = ("PARTITION", "TILE", "STAGES", "WARPS", "PROGRAMS")
ATTENTION_SETTINGS = [
    (512, 32, 4, 2, 1024),
    (512, 32, 4, 2, 512),
    (512, 32, 3, 2, 1024),
    (512, 32, 3, 1, 1024),
    (512, 16, 5, 1, 1024),
    (512, 32, 4, 4, 1024),
    (512, 32, 3, 4, 1024),
    (512, 64, 3, 4, 1024),
    (512, 64, 5, 4, 1024),
    (512, 128, 3, 8, 1024),
    (256, 32, 4, 2, 1024),
    (256, 32, 3, 2, 2048),
    (128, 32, 3, 2, 1024),
    (256, 64, 5, 4, 4096),  # as before, with one launch instead of two
]
# The sweep's rows and positions, the most telling first; None: from 100 to 700, row by row.
SWEEP_CASES = [(64, 300), (1, 300), (256, 300), (64, None), (8, 300), (128, 300)]
SWEEP_CASES += [(rows, 1000) for rows in (64, 1, 256, 8, 128)]
SWEEP_REPLAYS = 9
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


def microseconds(calls: list[Callable[[], object]], replays: int = REPLAYS) -> float:
    """Median time of one of ``calls``, run one after another in a graph."""
    torch.cuda.synchronize()  # the inputs are made on another stream
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
    for _ in range(replays + 3):
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


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    queries: list[Tensor]
    layers: list[PagedKV]
    last: Tensor
    positions: int  # of the longest row

    @classmethod
    def make(cls, lengths: Sequence[int]) -> AttentionInputs:
        layers = paged_layers(len(lengths), max(lengths))
        queries = [2 * normal(len(lengths), Q_HEADS, HEAD_DIM) for _ in layers]
        return cls(queries, layers, torch.tensor(lengths, device=DEVICE) - 1, max(lengths))

    def calls(self) -> list[Callable[[], Tensor]]:
        """The kernel as it is set now, with a workspace for that."""
        size = (Q_HEADS, HEAD_DIM, TABLE_POSITIONS, torch.device(DEVICE))
        space = triton_attention.AttentionWorkspace.allocate(len(self.last), *size)
        function = triton_attention.paged_decode_attention
        pairs = zip(self.queries, self.layers, strict=True)
        return [lambda q=q, kv=kv: function(q, kv, self.last, space) for q, kv in pairs]

    def plain(self, i: int) -> Tensor:
        kv = trimmed(self.layers[i], self.positions)
        return reference.paged_decode_attention(self.queries[i], kv, self.last)

    def judge(self) -> Tensor:
        wide = widened(trimmed(self.layers[0], self.positions))
        return reference.paged_decode_attention(self.queries[0].float(), wide, self.last)

    def moved(self) -> float:
        positions = int(self.last.sum()) + len(self.last)
        return 4 * HEAD_DIM * (KV_HEADS * positions + Q_HEADS * len(self.last))


def attention_case(rows: int, positions: int) -> Case:
    inputs = AttentionInputs.make([positions] * rows)
    calls = inputs.calls()
    return Case(
        f"attention, {positions} positions",
        calls,
        [lambda i=i: inputs.plain(i) for i in range(min(4, len(calls)))],
        inputs.moved(),
        lambda: (calls[0](), inputs.plain(0), inputs.judge()),
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


def sweep_attention(seconds: float) -> None:
    """All candidates at all sizes, as far as ``seconds`` reach."""
    deadline = time.monotonic() + seconds
    table: dict[tuple[int, ...], dict[str, float]] = {s: {} for s in ATTENTION_SETTINGS}
    floors: dict[str, float] = {}
    for rows, positions in SWEEP_CASES:
        draw = random.Random(rows)
        lengths = [positions or draw.randint(100, 700) for _ in range(rows)]
        inputs = AttentionInputs.make(lengths)
        judge, bound = inputs.judge(), 1.5 * error(inputs.plain(0), inputs.judge())
        name = f"{rows}x{positions or 'mix'}"
        floors[name] = inputs.moved() / BYTES_PER_SECOND * 1e6
        print(f"{name}, floor {floors[name]:.1f} µs", flush=True)
        for chosen in list(table):
            if time.monotonic() > deadline:
                break
            with settings(triton_attention, **dict(zip(ATTENTION_NAMES, chosen, strict=True))):
                try:
                    table[chosen][name] = _checked_time(inputs, judge, bound)
                except Exception as problem:  # noqa: BLE001 - one that fails is no answer
                    print(f"  {chosen} is out: {type(problem).__name__}: {problem}", flush=True)
                    del table[chosen]
                    continue
            print(f"  {chosen!s:24}{table[chosen][name]:8.2f}", flush=True)
        del inputs, judge
        gc.collect()
        torch.cuda.empty_cache()
    _print_table(table, floors)


def _checked_time(inputs: AttentionInputs, judge: Tensor, bound: float) -> float:
    """µs a call; ValueError if a row errs more than ``bound`` or depends on the others."""
    calls = inputs.calls()
    out = calls[0]()
    found = error(out, judge)
    if not found <= bound:
        raise ValueError(f"error {found:.1e}, allowed {bound:.1e}")
    row = len(out) - 1  # alone, the partitions are shared among more programs
    kv = inputs.layers[0]
    alone = AttentionInputs(
        [inputs.queries[0][row:]],
        [PagedKV(kv.keys, kv.values, kv.table[row:])],
        inputs.last[row:],
        inputs.positions,
    )
    if not torch.equal(alone.calls()[0]()[0], out[row]):
        raise ValueError("a row's bits depend on its company")
    if any(not torch.equal(calls[0](), out) for _ in range(5)):
        raise ValueError("two calls differ")
    return microseconds(calls, SWEEP_REPLAYS)


def _print_table(table: dict[tuple[int, ...], dict[str, float]], floors: dict[str, float]) -> None:
    """A line a candidate; the last column is the geometric mean of time over floor."""
    if not table:
        return
    names = [n for n in floors if all(n in times for times in table.values())]
    print("\n" + ", ".join(ATTENTION_NAMES) + ": µs by rows x positions, and mean share of floor")
    print(f"{'':24}", *(f"{name:>10}" for name in names), f"{'mean':>9}")
    print(f"{'byte floor':24}", *(f"{floors[name]:9.2f} " for name in names))
    best = {name: min(times[name] for times in table.values()) for name in names}
    for chosen, times in table.items():
        marks = [f"{times[n]:9.2f}{'*' if times[n] == best[n] else ' '}" for n in names]
        logs = [math.log(floors[n] / times[n]) for n in names]
        mean = math.exp(sum(logs) / max(1, len(logs)))
        print(f"{chosen!s:24}", *marks, f"{100 * mean:7.1f} %", flush=True)


def sweep_others() -> None:
    """Other settings of the frame and store kernels; each line lists all row counts."""
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
    print(f"  {chosen!s:20}", *(f"{rows:4}: {micros:8.2f}" for rows, micros in times), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", choices=("attention", "others"), help="compare settings")
    parser.add_argument("--seconds", type=float, default=75.0, help="of the attention sweep")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a CUDA device", file=sys.stderr)
        return 2
    print(torch.cuda.get_device_name(), torch.__version__)
    torch.manual_seed(0)
    if arguments.sweep == "attention":
        sweep_attention(arguments.seconds)
        return 0
    if arguments.sweep == "others":
        sweep_others()
        return 0
    right = [report(rows, make()) for rows, make in cases()]
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(main())
