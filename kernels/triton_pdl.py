"""Programmatic dependent launch: a kernel starts while its predecessor still drains.

A chain of small launches pays a gap and a cold start for each. With this attribute (Hopper
and later, also inside CUDA graphs) a kernel's programs start as soon as its predecessor's
have all started and leave room. Each kernel launched so must

- call :func:`let_next_start`, best at once: nothing of its own depends on it;
- before :func:`wait_for_inputs` touch only what no kernel writes: weights. It is called by
  every program, also by one with no work, since a kernel that ends without it would let its
  successor run beside its predecessor.

A kernel launched without the attribute waits for its whole predecessor, so both kinds mix.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

PDL = True  # False: every kernel waits for its whole predecessor, for measurements


def launch_options(x: Tensor, wanted: bool | None = None) -> dict[str, bool]:
    """Keywords of a launch that works on ``x``: the kernel's PDL and the launch's own.

    ``wanted``: whether this kernel should start early; by default as PDL says.
    """
    on = (PDL if wanted is None else wanted) and x.is_cuda and _knows_pdl(x.device)
    return {"PDL": True, "launch_pdl": True} if on else {"PDL": False}


@cache
def _knows_pdl(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """From when all programs have called this, the next kernel's may start."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Wait until every predecessor has ended and what it wrote can be read."""
    if PDL:
        tl.extra.cuda.gdc_wait()
