"""What the device does while the engine runs: busy, idle, and what the host waits for.

Read from a profiler trace of the real engine loop, since a loop that looks asynchronous may
still wait (event and device synchronisation pass torch's sync debug mode unseen).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from fishcli.engine import Engine, ListSource
from fishcli.errors import UsageError
from fishcli.pipeline.build import build_engine
from fishcli.pipeline.memory import Need, plan_memory
from fishcli.pipeline.models import Models
from fishcli.records import Request, Sampling

WARM_UP_GROUPS, TRACED_FRAMES = 10, 500
PROMPT_COLUMNS = 64
# Calls that return only when all work queued so far is done.
NEWEST_WAITS = frozenset({"cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaMemcpy"})


def trace_engine(
    models: Models, slots: int, frames: int = TRACED_FRAMES, *, cuda_graph: bool = True
) -> dict[str, Any]:
    """Trace ``frames`` frames of ``slots`` rows that never end meanwhile.

    ``device_idle``: share of the traced span in which no kernel ran. ``host_waits_per_frame``:
    calls that wait for the newest work. ``kernels_us``: microseconds a frame by kernel.
    Raises :class:`UsageError` for a model whose context is too short for such rows.
    """
    needed, context = PROMPT_COLUMNS + 2 * frames, models.ar.config.slow.max_seq_len
    if context < needed:
        raise UsageError(f"a trace needs rows of {needed} positions, the model has {context}")
    engine = _engine(models, slots, frames, cuda_graph=cuda_graph)
    generator = engine.generate(ListSource(_requests(models, slots, frames)))
    for _ in range(WARM_UP_GROUPS):
        next(generator)
    begun = engine.stats.frames
    # Without the CPU's operators: the calls of the CUDA runtime are in CUDA's own record.
    with profile(activities=[ProfilerActivity.CUDA]) as traced:
        while engine.stats.frames < begun + frames:
            next(generator)
    generator.close()
    # The raw record: building torch's tree of half a million events takes minutes.
    assert traced.profiler is not None
    return figures_of(traced.profiler.kineto_results.events(), engine.stats.frames - begun)


def _engine(models: Models, slots: int, frames: int, *, cuda_graph: bool) -> Engine:
    need = Need(PROMPT_COLUMNS, 2 * frames, has_references=False)
    config = models.checkpoint.config
    memory = plan_memory(config, models.weight_bytes, need, slots, models.device, models.dtype)
    return build_engine(models, memory, cuda_graph=cuda_graph)


def _requests(models: Models, slots: int, frames: int) -> list[Request]:
    config = models.ar.config
    prompt = torch.zeros(1 + config.num_codebooks, PROMPT_COLUMNS, dtype=torch.int32)
    prompt[0] = torch.arange(PROMPT_COLUMNS)
    return [
        Request(str(slot), prompt, Sampling(), slot, 2 * frames, ignore_stop=True)
        for slot in range(slots)
    ]


def figures_of(events: Any, frames: int) -> dict[str, Any]:
    """The figures of a trace's events over so many frames."""
    kernels: list[tuple[int, int]] = []  # start, end in nanoseconds
    by_name: defaultdict[str, int] = defaultdict(int)
    waits: list[int] = []
    last_launch = 0
    for event in events:
        start, name = event.start_ns(), event.name()
        if event.device_type() == DeviceType.CUDA:
            took = event.duration_ns()
            kernels.append((start, start + took))
            by_name[_short(name)] += took
        elif name in NEWEST_WAITS:
            waits.append(start)
        elif "Launch" in name:
            last_launch = max(last_launch, start)
    busy, span = _busy(sorted(kernels))
    return {
        "frames": frames,
        "device_idle": 1 - busy / span,
        # What comes behind the last launch is the profiler, which waits for its record.
        "host_waits_per_frame": sum(wait < last_launch for wait in waits) / frames,
        "busy_us_per_frame": busy / 1000 / frames,
        "span_us_per_frame": span / 1000 / frames,
        "kernels_us": {
            name: total / 1000 / frames
            for name, total in sorted(by_name.items(), key=lambda item: -item[1])
        },
    }


def _busy(spans: list[tuple[int, int]]) -> tuple[int, int]:
    """Length of the union of sorted spans, and from the first start to the last end."""
    busy, end = 0, spans[0][0]
    for start, stop in spans:
        busy += max(0, stop - max(start, end))
        end = max(end, stop)
    return busy, end - spans[0][0]


def _short(name: str) -> str:
    """A kernel's name without its template arguments and parameters."""
    return name.partition("<")[0].partition("(")[0].removeprefix("void ").strip()[-60:]
