"""Time the products of few rows, the norms and the sampler at S2-Pro sizes on a GPU.

Prints microseconds a call beside the plain form's, and for what is limited by bytes the
share of the time that the bus needs. A timed CUDA graph holds LAUNCHES calls on different
weights, so the cache holds none of them. ``--sweep`` tries other tiles for the products and
prints the best; take them over into kernels/triton_linear.py by hand.

    python scripts/bench_kernels_linear.py [--sweep] [--only linear|norm|sampling]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from fishcli.kernels import reference, sampling, triton_linear, triton_norm, triton_sampling
from fishcli.kernels.sampling import RAS_WINDOW, CounterDraws, SamplingState
from fishcli.kernels.triton_linear import Tile

READ_TB_S = 4.22  # of an H200
LAUNCHES = 36
REPLAYS = 25
EPS = 1e-6
Call = Callable[..., object]
Arguments = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """One of the model's products: name, fused form, outputs (pairs if gated), inputs."""

    name: str
    form: str
    outputs: int
    depth: int

    @property
    def gated(self) -> bool:
        return self.form == "norm_swiglu_linear"

    @property
    def weight_shape(self) -> tuple[int, int]:
        return (2 * self.outputs if self.gated else self.outputs, self.depth)


PRODUCTS = [
    Product("qkv", "norm_linear", 6144, 2560),
    Product("out", "linear_add", 2560, 4096),
    Product("gate, up", "norm_swiglu_linear", 9728, 2560),
    Product("down", "linear_add", 2560, 9728),
    Product("head", "linear", 4096, 2560),
]


def microseconds(function: Call, many: list[Arguments]) -> float:
    """Median time of a call, one for each of the arguments, replayed as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for arguments in many[:2]:
            function(*arguments)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for arguments in many:
            function(*arguments)
    times = []
    for _ in range(REPLAYS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / len(many))
    return statistics.median(times[3:])


def arguments(item: Product, rows: int, weight: Tensor) -> Arguments:
    """Arguments of the fused form and of its twin."""
    x = torch.randn(rows, item.depth, device="cuda", dtype=weight.dtype)
    if item.form == "linear":
        return x, weight
    if item.form == "linear_add":
        return x, weight, torch.randn(rows, item.outputs, device="cuda", dtype=weight.dtype)
    return x, torch.ones(item.depth, device="cuda", dtype=weight.dtype), EPS, weight


def keywords(item: Product, args: Arguments) -> dict[str, object]:
    """The same as keywords of ``triton_linear._launch``."""
    if item.form == "linear":
        return {"x": args[0], "weight": args[1]}
    if item.form == "linear_add":
        return {"x": args[0], "weight": args[1], "residual": args[2]}
    names = ("x", "norm", "eps", "weight")
    return dict(zip(names, args, strict=True)) | {"gated": item.gated}


def norm_apart(gated: bool, x: Tensor, norm: Tensor, eps: float, weight: Tensor) -> Tensor:
    """The fused forms that begin with a norm, in two launches."""
    return triton_linear._launch(triton_norm.rms_norm(x, norm, eps), weight, gated=gated)


def tiled(item: Product, tile: Tile, *arguments: object) -> Tensor:
    """The fused form with a tile of the caller's."""
    return triton_linear._launch(**keywords(item, arguments), tile=tile)


def relative(actual: Tensor, exact: Tensor) -> float:
    return float((actual.float() - exact).norm() / exact.norm())


def bench_products(sweep: bool) -> None:
    print("product     rows   fused  norm+rest   plain µs   TB/s  share  error (plain's)")
    for item in PRODUCTS:
        weights = [
            torch.randn(item.weight_shape, device="cuda", dtype=torch.bfloat16) * item.depth**-0.5
            for _ in range(LAUNCHES)
        ]
        for rows in (1, 2, 4, 8):
            many = [arguments(item, rows, weight) for weight in weights]
            fused, plain = getattr(triton_linear, item.form), getattr(reference, item.form)
            time = microseconds(fused, many)
            plain_time = microseconds(plain, many)
            apart = float("nan")
            if item.form.startswith("norm"):
                apart = microseconds(partial(norm_apart, item.gated), many)
            exact = plain(*[a.float() if isinstance(a, Tensor) else a for a in many[0]])
            rate = weights[0].numel() * 2 / time / 1e6
            errors = relative(fused(*many[0]), exact), relative(plain(*many[0]), exact)
            print(
                f"{item.name:10} {rows:5} {time:7.1f} {apart:10.1f} {plain_time:10.1f} {rate:6.2f}"
                f" {rate / READ_TB_S:6.0%}  {errors[0]:.2e} ({errors[1]:.2e})",
                flush=True,
            )
            if sweep and rows in (1, 2, 8):
                sweep_tiles(item, rows, many)
        del weights, many


def tiles(rows: int, matrix_unit: bool, gated: bool) -> Iterator[object]:
    """Tiles worth a try."""
    if not matrix_unit:
        for outputs, depth, warps in product((1, 2, 4, 8), (512, 1024, 2048), (2, 4, 8)):
            held = outputs * depth * (2 if gated else 1) // (32 * warps)  # numbers a thread
            if depth >= 256 * warps and 8 <= held <= 64:
                yield Tile(outputs, depth, warps, 1)
        return
    for outputs, depth, warps, stages in product((16, 32, 64), (128, 256, 512), (4, 8), (3, 4, 6)):
        stage = 2 * depth * (outputs * (2 if gated else 1) + 8)
        if depth // warps >= 16 and stages * stage <= 110_000 and stage >= 4096:
            yield Tile(outputs, depth, warps, stages)


def sweep_tiles(item: Product, rows: int, many: list[Arguments]) -> None:
    """Print the five best tiles; for one row also those of the matrix unit."""
    few_from = triton_linear.MATRIX_UNIT_FROM
    for matrix_unit in (False, True) if rows == 1 else (True,):
        triton_linear.MATRIX_UNIT_FROM = 1 if matrix_unit else 9
        found = []
        for tile in tiles(rows, matrix_unit, item.gated):
            try:
                found.append((microseconds(partial(tiled, item, tile), many), tile))
            except Exception as error:  # noqa: BLE001 - a tile that does not fit is no answer
                print(f"    {tile}: {type(error).__name__}")
        for time, tile in sorted(found, key=lambda pair: pair[0])[:5]:
            print(f"    {'matrix' if matrix_unit else 'sums':6} {time:7.1f} µs  {tile}", flush=True)
    triton_linear.MATRIX_UNIT_FROM = few_from


def bench_norms() -> None:
    print("norm              rows   fused   plain µs  share of bytes")
    for rows in (1, 8, 64, 128, 256):
        shape = (rows, 2560)
        sets = [[torch.randn(shape, device="cuda").bfloat16() for _ in "xd"] for _ in range(36)]
        ups = [torch.randn(rows, 19456, device="cuda").bfloat16() for _ in range(36)]
        norm = torch.ones(2560, device="cuda", dtype=torch.bfloat16)
        forms = {
            "rms_norm": ([(x, norm, EPS) for x, _ in sets], 2 * 2),
            "add_rms_norm": ([(x, d, norm, EPS) for x, d in sets], 4 * 2),
            "swiglu_stacked": ([(up,) for up in ups], 3 * 2 * 9728 / 2560),
        }
        for name, (many, width) in forms.items():
            fused, plain = getattr(triton_norm, name), getattr(reference, name)
            time = microseconds(fused, many)
            plain_time = microseconds(plain, many)
            floor = rows * 2560 * width / READ_TB_S / 1e6
            print(
                f"{name:15} {rows:6} {time:7.1f} {plain_time:10.1f} {floor / time:8.0%}", flush=True
            )


def bench_sampling() -> None:
    print("sampler   dtype      rows   fused   plain µs   other draws")
    for rows, dtype in product((1, 8, 64, 128, 256), (torch.bfloat16, torch.float32)):
        logits = torch.randn(rows, 4097, device="cuda").mul(3).to(dtype)
        codes, stop = logits[:, :-1].contiguous(), logits[:, -1:].contiguous()
        full = torch.full((rows,), 0.8, device="cuda")
        top_k = torch.full((rows,), 30, device="cuda")
        state = SamplingState(full, full, top_k, 30)
        window = torch.full((rows, RAS_WINDOW), -1, device="cuda")
        seed = torch.arange(rows, device="cuda")
        draws = CounterDraws(seed, seed)
        pairs = {
            "semantic": (
                partial(triton_sampling.sample_semantic, codes, stop, state, window, seed, seed),
                partial(sampling.sample_semantic, logits, state, window, draws),
            ),
            "residual": (
                partial(triton_sampling.sample_residual, codes, state, seed, seed, 3),
                partial(sampling.sample_residual, codes, state, draws, 3),
            ),
        }
        for name, (fused, plain) in pairs.items():
            other = int((fused() != plain()).sum())
            time, plain_time = microseconds(fused, [()] * 10), microseconds(plain, [()] * 10)
            kind = str(dtype).removeprefix("torch.")
            print(
                f"{name:9} {kind:9} {rows:5} {time:7.1f} {plain_time:10.1f} {other:8}", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="try other tiles for the products")
    parser.add_argument("--only", choices=("linear", "norm", "sampling"))
    options = parser.parse_args()
    torch.manual_seed(0)
    print(torch.cuda.get_device_name())
    if options.only in (None, "norm"):
        bench_norms()
    if options.only in (None, "sampling"):
        bench_sampling()
    if options.only in (None, "linear"):
        bench_products(options.sweep)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
