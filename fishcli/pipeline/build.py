"""Builds the engine that a run's models, memory plan and switches ask for."""

from __future__ import annotations

import torch

from fishcli.engine import Batching, Engine, EngineSettings, ModelRunner
from fishcli.engine.graphs import ladder, tiles
from fishcli.errors import UsageError
from fishcli.kernels.ops import FUSED_NAME
from fishcli.pipeline.memory import MemoryPlan
from fishcli.pipeline.models import Models

# Slots of a tile in the deterministic mode: on a GPU a whole tile costs little more than one
# row, on a CPU a row alone is the only shape that is sure to be independent of its company.
DETERMINISTIC_TILE = {"cuda": 64, "cpu": 1}


def batching(device: torch.device, *, deterministic: bool) -> Batching:
    """Which slots go through a frame together."""
    return Batching(DETERMINISTIC_TILE[device.type] if deterministic else 0)


def build_engine(
    models: Models, memory: MemoryPlan, *, deterministic: bool = False, cuda_graph: bool = True
) -> Engine:
    """An engine of ``memory.slots`` slots; on a GPU its frames are captured here.

    Raises :class:`UsageError` for the deterministic mode on a GPU without fused kernels.
    """
    how = batching(models.device, deterministic=deterministic)
    ops = models.ar.slow.ops
    if how.isolated and models.device.type == "cuda" and ops.name != FUSED_NAME:
        raise UsageError(
            "--deterministic on a GPU needs the fused kernels, whose sums do not depend on a "
            f"row's company: here they are {ops.name!r} (`fishcli doctor` says why)"
        )
    tile = max(how.tile, 1)
    slots = -(-memory.slots // tile) * tile  # tiles are whole, their spare slots stay empty
    runner = ModelRunner(models.ar, slots, memory.capacity, memory.blocks)
    if models.device.type == "cuda" and cuda_graph:
        runner.capture(tiles(slots, tile) if how.isolated else ladder(slots))
    settings = EngineSettings.for_device(models.device, memory.slots, memory.capacity, how)
    return Engine(runner, settings)
