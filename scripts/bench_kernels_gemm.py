"""Time the split products of triton_gemm against cuBLAS at S2-Pro sizes on a GPU.

First all candidates are compiled side by side by processes that run each once. Then, for
64, 128, 256 and 16 rows: each product by cuBLAS and by the candidates, then a chain of
layers (norm, qkv, out + residual, norm, gates and ups, down + residual; no attention) by
cuBLAS and by the best candidates, with the norm in a launch of its own and in the one that
adds up the parts. Everything is compared with float32 first. A timed CUDA graph goes through
nine layers of weights, so the cache holds none of them.

    python scripts/bench_kernels_gemm.py [--seconds 70] [--rows 64 128]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fishcli.kernels import fused, reference, triton_gemm, triton_norm
from fishcli.kernels.triton_gemm import Tile

READ_TB_S = 4.22  # of an H200
LAYERS = 9  # 202 MB each
ROUNDS = 3  # through the layers in a timed graph of one product
REPLAYS = 21
COMPILE_SECONDS = 40
MAX_ERROR = 6e-3  # against float32, relative; a rounding to bfloat16 is 1.7e-3 of it
EPS = 1e-6
START = time.monotonic()
say = partial(print, flush=True)
Key = tuple[str, int, Tile]


@dataclass(frozen=True, slots=True)
class Product:
    """One of the model's products: name, rows of the weight, inputs."""

    name: str
    outputs: int
    depth: int

    @property
    def gated(self) -> bool:
        return self.name == "gate, up"

    @property
    def added(self) -> bool:
        return self.name in ("out", "down")


PRODUCTS = {
    name: Product(name, outputs, depth)
    for name, outputs, depth in (
        ("qkv", 6144, 2560),
        ("out", 2560, 4096),
        ("gate, up", 19456, 2560),
        ("down", 2560, 9728),
    )
}
ORDER = ("down", "out", "gate, up", "qkv")
SMALL = {  # up to 64 rows
    "down": [
        Tile(64, 128, 64, 13, 4, 4, 512),
        Tile(64, 128, 64, 8, 4, 4, 512),
        Tile(64, 128, 128, 6, 4, 4, 512),
        Tile(64, 64, 128, 6, 4, 3, 512),
    ],
    "out": [
        Tile(64, 128, 64, 8, 4, 4, 512),
        Tile(64, 128, 64, 13, 4, 4, 256),
        Tile(64, 128, 128, 6, 4, 4, 512),
        Tile(64, 64, 128, 4, 4, 3, 512),
    ],
    "gate, up": [
        Tile(64, 128, 64, 1, 4, 4, 512),
        Tile(64, 256, 64, 1, 8, 4, 512),
        Tile(64, 64, 64, 1, 4, 4, 512),
        Tile(64, 128, 64, 1, 4, 4),
    ],
    "qkv": [
        Tile(64, 64, 128, 1, 4, 4, 512),
        Tile(64, 64, 64, 2, 4, 5, 512),
        Tile(64, 128, 64, 3, 4, 4, 512),
        Tile(64, 128, 64, 5, 4, 4, 512),
    ],
}
CANDIDATES = {
    16: SMALL,
    64: SMALL,
    128: {
        "down": [
            Tile(128, 128, 64, 6, 8, 4, 512),
            Tile(128, 128, 64, 13, 8, 3, 512),
            Tile(128, 256, 64, 13, 8, 4, 512),
            Tile(64, 128, 64, 6, 4, 4, 512),
        ],
        "out": [
            Tile(128, 128, 64, 6, 8, 4, 512),
            Tile(128, 128, 64, 11, 8, 3, 256),
            Tile(128, 256, 64, 13, 8, 4, 256),
            Tile(64, 128, 64, 6, 4, 4, 512),
        ],
        "gate, up": [
            Tile(128, 256, 64, 1, 8, 4, 512),
            Tile(128, 128, 64, 1, 8, 3, 512),
            Tile(128, 128, 64, 1, 4, 3, 512),
            Tile(64, 256, 64, 1, 8, 3, 512),
        ],
        "qkv": [
            Tile(128, 128, 64, 2, 8, 4, 512),
            Tile(128, 64, 64, 1, 4, 5, 512),
            Tile(128, 128, 64, 5, 8, 3, 512),
            Tile(128, 256, 64, 5, 8, 4, 512),
        ],
    },
    256: {
        "down": [Tile(128, 128, 64, 6, 8, 3, 512), Tile(128, 256, 64, 6, 8, 4, 512)],
        "out": [Tile(128, 128, 64, 6, 8, 3, 512), Tile(128, 128, 64, 3, 8, 4, 512)],
        "gate, up": [Tile(128, 256, 64, 1, 8, 4, 512), Tile(128, 128, 64, 1, 8, 3, 512)],
        "qkv": [Tile(128, 128, 64, 1, 8, 4, 512), Tile(128, 128, 64, 2, 8, 3, 512)],
    },
}


def ours(item: Product, tile: Tile, x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    if item.gated:
        return triton_gemm._product(x, weight, tile, gated=True)
    if item.added:
        return triton_gemm.linear_add(x, weight, residual, tile)
    return triton_gemm.linear(x, weight, tile)


def library(item: Product, x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """cuBLAS, with the launch of ours that it needs for gates."""
    if item.gated:
        return triton_norm.swiglu_stacked(F.linear(x, weight))
    return residual.addmm_(x, weight.t()) if item.added else F.linear(x, weight)


def plain(item: Product, x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    if item.gated:
        gate, up = F.linear(x, weight).chunk(2, dim=-1)
        return F.silu(gate) * up
    return residual + F.linear(x, weight) if item.added else F.linear(x, weight)


def operands(item: Product, rows: int, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(rows, item.depth, device="cuda", dtype=torch.bfloat16)
    return x, weight, torch.randn(rows, item.outputs, device="cuda", dtype=torch.bfloat16)


def compile_one(name: str, rows: int, tile: Tile) -> str:
    """Run in a process of its own: compile into the cache on disk, and run; the problem if any."""
    item = PRODUCTS[name]
    try:
        with torch.inference_mode():
            weight = torch.zeros(item.outputs, item.depth, device="cuda", dtype=torch.bfloat16)
            x, _, residual = operands(item, rows, weight)
            ours(item, tile, x, weight, residual)
            if item.added:
                norm = torch.ones(item.outputs, device="cuda", dtype=torch.bfloat16)
                triton_gemm.linear_add_norm(x, weight, residual, norm, EPS, tile)
            torch.cuda.synchronize()
    except Exception as problem:  # noqa: BLE001 - a tile that does not fit is no answer
        return f"{type(problem).__name__}: {str(problem).splitlines()[0][:90]}"
    return ""


def compile_all(many_rows: list[int]) -> dict[Key, str]:
    """The problem of each candidate, empty if it has run."""
    keys = [
        (name, rows, tile)
        for rows in many_rows
        for name in ORDER
        for tile in CANDIDATES[rows][name]
        if rows != 16 or 64 not in many_rows  # the same kernels as for 64
    ]
    workers = max(1, min(12, (os.cpu_count() or 2) - 2))
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn)
    futures = {pool.submit(compile_one, *key): key for key in keys}
    done, late = wait(futures, timeout=COMPILE_SECONDS)
    problems = {}
    for future in done:
        broken = future.exception()
        problems[futures[future]] = type(broken).__name__ if broken else future.result()
    for child in multiprocessing.active_children() if late else ():
        child.terminate()
    pool.shutdown(cancel_futures=True)
    say(f"{len(done)} of {len(keys)} candidates compiled after {time.monotonic() - START:.0f} s")
    return problems


def microseconds(calls: list[Callable[[], object]], count: int) -> float:
    """Median time of one of ``count`` parts of ``calls``, replayed as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(REPLAYS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / count)
    return statistics.median(times[3:])


def relative(actual: Tensor, exact: Tensor) -> float:
    return float((actual.float() - exact).norm() / exact.norm())


def bench_product(
    item: Product, rows: int, weights: list[Tensor], problems: dict[Key, str]
) -> tuple[Tile | None, float, float]:
    """Print cuBLAS and the candidates; (best candidate, its time, cuBLAS's)."""
    many = [operands(item, rows, weight) for weight in weights] * ROUNDS
    x, weight, residual = many[0][0], many[0][1], many[0][2].clone()  # cuBLAS adds in place
    exact = plain(item, x.float(), weight.float(), residual.float())
    best, best_time, library_time = None, float("inf"), float("inf")
    for tile in (None, *CANDIDATES[rows][item.name]):
        problem = problems.get((item.name, max(rows, 64), tile), "") if tile else ""
        form = partial(library, item) if tile is None else partial(ours, item, tile)
        label = f"{rows:4} {item.name:9} {tile or 'cuBLAS'}"
        try:
            if problem:
                raise RuntimeError(problem)
            error = relative(form(x, weight, residual.clone()), exact)
            taken = microseconds([partial(form, *one) for one in many], len(many))
        except Exception as failed:  # noqa: BLE001 - the others may still run
            say(f"{label}: {type(failed).__name__}: {str(failed).splitlines()[0][:90]}")
            continue
        rate = weights[0].numel() * 2 / taken / 1e6
        wrong = "" if error < MAX_ERROR else "  WRONG"
        say(
            f"{label:97} {taken:6.1f} µs {rate:5.2f} TB/s {rate / READ_TB_S:4.0%} "
            f"{error:.1e}{wrong}"
        )
        if tile is None:
            library_time = taken
        elif not wrong and taken < best_time:
            best, best_time = tile, taken
    return best, best_time, library_time


def chain(forms: object, layers: list[dict[str, Tensor]], norm: Tensor, x: Tensor) -> Tensor:
    """Layers of products, each fed by the one before; ``x`` may be written to."""
    rows = x.shape[0]
    for layer in layers:
        heads = forms.norm_linear(x, norm, EPS, layer["qkv"])
        x = forms.linear_add(first_heads(heads, rows), layer["out"], x)
        gated = forms.norm_swiglu_linear(x, norm, EPS, layer["gate, up"])
        x = forms.linear_add(gated, layer["down"], x)
    return x


def first_heads(heads: Tensor, rows: int) -> Tensor:
    """As many numbers as attention would give, without a copy."""
    return heads.view(-1)[: rows * 4096].view(rows, 4096)


def chain_normed(layers: list[dict[str, Tensor]], norm: Tensor, x: Tensor) -> Tensor:
    """The same, each norm with the sum before it; what is not in TILES is cuBLAS's."""
    normed = triton_norm.rms_norm(x, norm, EPS)
    for layer in layers:
        heads = fused.linear(normed, layer["qkv"])
        normed, x = add_norm(first_heads(heads, x.shape[0]), layer["out"], x, norm)
        tile = triton_gemm.tile_for(normed, layer["gate, up"])
        if tile:
            gated = triton_gemm._product(normed, layer["gate, up"], tile, gated=True)
        else:
            gated = triton_norm.swiglu_stacked(F.linear(normed, layer["gate, up"]))
        normed, x = add_norm(gated, layer["down"], x, norm)
    return x


def add_norm(x: Tensor, weight: Tensor, residual: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    tile = triton_gemm.tile_for(x, weight)
    if tile:
        return triton_gemm.linear_add_norm(x, weight, residual, norm, EPS, tile)
    total = residual.addmm_(x, weight.t())
    return triton_norm.rms_norm(total, norm, EPS), total


def bench_chain(
    rows: int, layers: list[dict[str, Tensor]], best: dict[str, tuple[Tile | None, float, float]]
) -> None:
    """Print the chain by cuBLAS and by ours, for the winners and for more than these."""
    floor = sum(weight.numel() for weight in layers[0].values()) * 2 / READ_TB_S / 1e6
    norm = torch.ones(2560, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(rows, 2560, device="cuda", dtype=torch.bfloat16)
    wide = [{name: weight.float() for name, weight in layer.items()} for layer in layers[:1]]
    exact = chain(reference, wide, norm.float(), x.float())  # one layer: errors grow with depth
    known = [name for name in ORDER if name in best and best[name][0]]
    winners = tuple(name for name in known if best[name][1] < best[name][2])
    choices = dict.fromkeys([(), winners, ("down",), ("down", "out"), tuple(known)])
    for names in choices:
        if not set(names) <= set(known):
            continue
        triton_gemm.TILES = {
            (PRODUCTS[name].outputs, PRODUCTS[name].depth, rows): best[name][0] for name in names
        }
        forms = {"norm apart": partial(chain, fused), "norm with the sum": chain_normed}
        for label, form in list(forms.items())[: 2 if names else 1]:
            try:
                error = relative(form(layers[:1], norm, x.clone()), exact)
                held = x.clone()
                call = partial(form, layers, norm, held)
                taken = microseconds([call], LAYERS)
            except Exception as failed:  # noqa: BLE001 - the others may still run
                say(f"{rows:4} chain {names} {label}: {failed}")
                continue
            say(
                f"{rows:4} chain, ours: {', '.join(names) or 'none':26} {label:18} {taken:6.1f} µs "
                f"a layer, floor {floor:.1f} ({floor / taken:.0%}) {error:.1e}"
            )
    triton_gemm.TILES = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=70, help="nothing new after these")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 128, 256, 16])
    options = parser.parse_args()
    problems = compile_all(options.rows)
    torch.manual_seed(0)
    say(torch.cuda.get_device_name())
    layers = [
        {
            name: torch.randn(item.outputs, item.depth, device="cuda", dtype=torch.bfloat16)
            * item.depth**-0.5
            for name, item in PRODUCTS.items()
        }
        for _ in range(LAYERS)
    ]
    for rows in options.rows:
        best = {}
        for name in ORDER:
            if time.monotonic() - START < options.seconds:
                weights = [layer[name] for layer in layers]
                best[name] = bench_product(PRODUCTS[name], rows, weights, problems)
        if time.monotonic() - START < options.seconds:
            bench_chain(rows, layers, best)
        for name, (tile, taken, library_time) in best.items():
            if tile and taken < library_time:
                item = PRODUCTS[name]
                say(f"    ({item.outputs}, {item.depth}, {rows}): {tile},  # {name}")
        say(f"{rows} rows done after {time.monotonic() - START:.0f} s")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
