"""Inputs and judges that the tests of kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from fishcli.kernels.reference import Heads, PagedKV

ROPE_BASE = 1e6


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """torch.empty and its relatives return NaN, so that what is not written shows."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def error(actual: Tensor, expected: Tensor) -> float:
    """‖actual - expected‖ / ‖expected‖ in float64; NaN where either has one."""
    expected = expected.double()
    return float((actual.double() - expected).norm() / expected.norm())


def normal(generator: torch.Generator, *shape: int, like: Tensor) -> Tensor:
    """Standard normal numbers, drawn on the CPU, with the dtype and device of ``like``."""
    return torch.randn(*shape, generator=generator).to(like)


def make_heads(generator: torch.Generator, kv_heads: int, norm: bool, head_dim: int, like: Tensor):
    """Heads with random norm weights, or without norms."""
    if not norm:
        return Heads(kv_heads, head_dim)
    weights = [1 + 0.3 * normal(generator, head_dim, like=like) for _ in range(2)]
    return Heads(kv_heads, head_dim, *weights, norm_eps=1e-6)


def wide_heads(heads: Heads) -> Heads:
    """The same in float32."""
    if heads.q_norm is None or heads.k_norm is None:
        return heads
    return replace(heads, q_norm=heads.q_norm.float(), k_norm=heads.k_norm.float())


def make_paged_kv(
    generator: torch.Generator,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    lengths: list[int],
    max_blocks: int,
    like: Tensor,
) -> PagedKV:
    """Blocks in shuffled order for rows of ``lengths`` filled positions; all else is NaN.

    Unused table entries name a block of NaN, positions of a last block beyond its row's
    length are NaN.
    """
    used = [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(used) + 3, generator=generator)
    shape = (len(order), kv_heads, block_size, head_dim)
    keys = torch.full(shape, float("nan")).to(like)
    values = keys.clone()
    table = torch.full((len(lengths), max_blocks), int(order[-1]), dtype=torch.int32)
    first = 0
    for row, length in enumerate(lengths):
        blocks = order[first : first + used[row]]
        table[row, : used[row]] = blocks.int()
        first += used[row]
        for cache in (keys, values):
            filled = normal(generator, length, kv_heads, head_dim, like=like)
            for j, block in enumerate(blocks.tolist()):
                part = filled[j * block_size : (j + 1) * block_size]
                cache[block, :, : len(part)] = part.transpose(0, 1)
    return PagedKV(keys, values, table.to(like.device))


def judge_kv(kv: PagedKV) -> PagedKV:
    """The same in float32 with zeros for NaN: the twin multiplies what it masks by zero."""
    return PagedKV(kv.keys.float().nan_to_num(), kv.values.float().nan_to_num(), kv.table)
