"""Time the products of few rows and the sampler at S2-Pro sizes on a GPU.

In this order, until ``--seconds`` are over: a chain of layers' products with programmatic
dependent launch off and on, the sampler, each product, with other tiles too
(``--tiles``). What is timed is compared with the plain form first. A timed CUDA graph
holds calls on different weights, so the cache holds none of them; for what is limited by
bytes the share of the time that the bus needs is shown.

    python scripts/bench_kernels_linear.py [--tiles] [--seconds 100]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from fishcli.kernels import (
    reference,
    sampling,
    triton_linear,
    triton_pdl,
    triton_sampling,
)
from fishcli.kernels.sampling import RAS_WINDOW, CounterDraws, SamplingState
from fishcli.kernels.triton_linear import Tile

READ_TB_S = 4.22  # of an H200
LAUNCHES = 24
LAYERS = 8  # of the chain, 200 MB each
START = time.monotonic()
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


def tiled(item: Product, tile: Tile, *arguments: object) -> Tensor:
    """The fused form with a tile of the caller's."""
    return triton_linear._launch(**keywords(item, arguments), tile=tile)


def relative(actual: Tensor, exact: Tensor) -> float:
    return float((actual.float() - exact).norm() / exact.norm())


def chain(forms: object, layers: list[list[Tensor]], norm: Tensor, x: Tensor) -> Tensor:
    """The products of some layers, each fed by the one before, without attention."""
    rows = x.shape[0]
    for qkv, out, gate_up, down in layers:
        heads = forms.norm_linear(x, norm, EPS, qkv).view(-1)[: rows * out.shape[1]]
        x = forms.linear_add(heads.view(rows, -1), out, x)
        x = forms.linear_add(forms.norm_swiglu_linear(x, norm, EPS, gate_up), down, x)
    return x


def bench_chain() -> None:
    print("chain of layers without attention, µs a layer")
    make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    layers = [
        [make(item.weight_shape) * item.depth**-0.5 for item in PRODUCTS[:4]] for _ in range(LAYERS)
    ]
    norm = torch.ones(2560, device="cuda", dtype=torch.bfloat16)
    floor = sum(weight.numel() for weight in layers[0]) * 2 / READ_TB_S / 1e6
    for rows in (1, 8):
        x = make(rows, 2560)
        torch.cuda.synchronize()
        exact = chain(reference, layers, norm, x).float()
        results = {}
        for pdl in (False, True):
            triton_pdl.PDL = pdl
            out: list[Tensor] = []
            run = partial(lambda x, out: out.append(chain(triton_linear, layers, norm, x)), x, out)
            taken = microseconds(run, [()]) / LAYERS
            results[pdl] = out[-1].clone()  # of the last replay
            print(
                f"  {rows} rows, PDL {pdl!s:5} {taken:7.1f} µs, floor {floor:5.1f} "
                f"({floor / taken:4.0%}), against plain {relative(results[pdl], exact):.1e}, "
                f"as without PDL: {torch.equal(results[False], results[pdl])}",
                flush=True,
            )
    triton_pdl.PDL = True


def line(item: Product, rows: int, many: list[Arguments], exact: Tensor, tile: Tile | None) -> None:
    """Compare and time one tile, or the usual one, and print it."""
    fused = getattr(triton_linear, item.form) if tile is None else partial(tiled, item, tile)
    try:
        error = relative(fused(*many[0]), exact)
        taken = microseconds(fused, many) if error < 1e-2 else float("nan")
    except Exception as problem:  # noqa: BLE001 - a tile that does not fit is no answer
        print(f"{item.name:9} {rows} {tile}: {type(problem).__name__}", flush=True)
        return
    rate = many[0][-1 if item.form != "linear_add" else 1].numel() * 2 / taken / 1e6
    print(
        f"{item.name:9} {rows:2} {taken:7.1f} µs {rate:6.2f} TB/s {rate / READ_TB_S:5.0%}  "
        f"{error:.1e}  {tile or 'as set'}",
        flush=True,
    )


def bench_products(with_tiles: bool, seconds: float) -> None:
    print("product rows, time, rate, share, error, tile")
    for rows, item in product((1, 8), PRODUCTS):
        weights = [
            torch.randn(item.weight_shape, device="cuda", dtype=torch.bfloat16) * item.depth**-0.5
            for _ in range(LAUNCHES)
        ]
        many = [arguments(item, rows, weight) for weight in weights]
        torch.cuda.synchronize()
        wide = [a.float() if isinstance(a, Tensor) else a for a in many[0]]
        exact = getattr(reference, item.form)(*wide)
        for tile in [None, *(tiles(rows, item.gated) if with_tiles else [])]:
            if tile is None or time.monotonic() - START < seconds:
                line(item, rows, many, exact, tile)
        if rows == 1:
            triton_pdl.PDL = False
            print("  without PDL:", end=" ")
            line(item, rows, many, exact, None)
            triton_pdl.PDL = True


def tiles(rows: int, gated: bool) -> list[Tile]:
    """Tiles worth a try."""
    if rows == 1 and gated:
        return [
            Tile(1, 1024, 4, 1),
            Tile(1, 2048, 4, 1),
            Tile(4, 1024, 8, 1),
        ]
    if rows == 1:
        return [
            Tile(4, 1024, 4, 1),
            Tile(2, 1024, 4, 1),
            Tile(2, 2048, 4, 1),
            Tile(1, 1024, 2, 1),
        ]
    return [Tile(32, 256, 4, 3) if gated else Tile(16, 256, 4, 5)]


def bench_sampling() -> None:
    print("sampler   dtype      rows  no PDL     PDL   plain µs   other draws")
    cases = [(rows, torch.bfloat16) for rows in (1, 8, 64, 256)]
    for rows, dtype in [*cases, (1, torch.float32)]:
        logits = torch.randn(rows, 4097, device="cuda").mul(3).to(dtype)
        codes, stop = logits[:, :-1], logits[:, -1:]  # as from the model's head
        alone = codes.clone(memory_format=torch.contiguous_format)  # rows begin on 16 bytes
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
                partial(triton_sampling.sample_residual, alone, state, seed, seed, 3),
                partial(sampling.sample_residual, alone, state, draws, 3),
            ),
        }
        for name, (fused, plain) in pairs.items():
            other = int((fused() != plain()).sum())
            triton_pdl.PDL = False
            slow = microseconds(fused, [()] * 10)
            triton_pdl.PDL = True
            taken, plain_time = microseconds(fused, [()] * 10), microseconds(plain, [()] * 10)
            kind = str(dtype).removeprefix("torch.")
            print(
                f"{name:9} {kind:9} {rows:5} {slow:7.1f} {taken:7.1f} {plain_time:10.1f} {other:8}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiles", action="store_true", help="try other tiles for the products")
    parser.add_argument("--seconds", type=float, default=100, help="no new tiles after these")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), flush=True)
    parts = {
        "chain": bench_chain,
        "sampling": bench_sampling,
        "products": partial(bench_products, options.tiles, options.seconds),
    }
    for name, part in parts.items():
        part()
        print(f"{name} done after {time.monotonic() - START:.0f} s", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
