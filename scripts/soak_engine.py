"""2,000 mixed rows in shuffled order: is a frame at the end as fast as at the beginning?

``python scripts/soak_engine.py [--model random:s2-pro] [--rows 2000] [--slots 64] [--json FILE]``

Runs the engine alone over rows of very different lengths and times every frame on the
device itself, between two events, so that prompts read between frames do not count. Holds if
the median frame of the last tenth of the full batches is within 3 % of the first tenth's at
equal context (frames are compared whose mean number of cached positions agrees within 5 %),
reserved device memory does not grow after the first tenth, and no block is lost.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from fishcli.bench.rows import longest_text, make_rows
from fishcli.bench.run import PROMPT_OVERHEAD, commit, machine
from fishcli.checkpoint import resolve
from fishcli.engine import ListSource
from fishcli.estimate import estimate_frames
from fishcli.pipeline.build import build_engine
from fishcli.pipeline.memory import Need, plan_memory
from fishcli.pipeline.models import Models, load_models, pick_device, pick_ops
from fishcli.prompt import PromptBuilder
from fishcli.records import Request

ALLOWED_DRIFT = 0.03
SAME_CONTEXT = 0.05


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the whole batch."""

    milliseconds: float
    context: float  # mean cached positions of the rows


class FrameTimer:
    """Times frames where they run: by events on a GPU, by the clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._spans: list[tuple[Any, Any]] = []

    def timed(self, frame: Callable[[], None]) -> None:
        """Run one frame between two marks."""
        start = self._mark()
        frame()
        self._spans.append((start, self._mark()))

    def milliseconds(self) -> list[float]:
        """Of every frame so far, once the device has come to its end."""
        if not self._cuda:
            return [1000 * (end - start) for start, end in self._spans]
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in self._spans]

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="random:s2-pro")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    device = pick_device("auto")
    ops = pick_ops(device, print)
    models = load_models(resolve(arguments.model, device), device, ops)
    frames, reserved = run(models, arguments.rows, arguments.slots)
    result = judge(frames, reserved) | {
        "model": arguments.model,
        "rows": arguments.rows,
        "slots": arguments.slots,
        "machine": machine(device),
        "commit": commit(),
    }
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["holds"] else 1


def run(models: Models, count: int, slots: int) -> tuple[list[Frame], list[int]]:
    """Generate all rows; the engine checks its blocks at the end.

    Returns the frames of full batches, and the device memory reserved at each hand-over.
    """
    requests, need = make_requests(models, count)
    config = models.checkpoint.config
    memory = plan_memory(config, models.weight_bytes, need, slots, models.device, models.dtype)
    engine = build_engine(models, memory)
    timer, contexts, reserved = FrameTimer(models.device), [], []
    step = engine.run_frame

    def timed_step() -> None:
        rows = engine.rows
        contexts.append(mean(row.cached for row in rows) if len(rows) == slots else 0.0)
        timer.timed(step)

    engine.run_frame = timed_step  # type: ignore[method-assign]
    for _ in engine.generate(ListSource(requests)):
        reserved.append(reserved_bytes(models.device))
    frames = [
        Frame(milliseconds, context)
        for milliseconds, context in zip(timer.milliseconds(), contexts, strict=True)
        if context
    ]
    return frames, reserved


def make_requests(models: Models, count: int) -> tuple[list[Request], Need]:
    """Rows of the bench with their drawn lengths, shuffled."""
    config = models.checkpoint.config
    longest = longest_text(config.slow.max_seq_len, PROMPT_OVERHEAD)
    with tempfile.TemporaryDirectory() as name:
        rows = make_rows(count, longest, "none", Path(name))
    prompts = PromptBuilder(models.tokenizer, config)
    requests = [
        Request(
            id=row.id,
            prompt=prompts.build(row.text),
            sampling=row.sampling,
            seed=row.seed,
            max_frames=rows.frames[row.id],
            ignore_stop=True,
            expected_frames=estimate_frames(row.text),
        )
        for row in rows.rows
    ]
    random.Random(0).shuffle(requests)
    columns = max(request.prompt.shape[1] for request in requests)
    return requests, Need(columns, rows.longest, has_references=False)


def reserved_bytes(device: torch.device) -> int:
    """Bytes that torch holds of the device."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def judge(frames: list[Frame], reserved: list[int]) -> dict[str, object]:
    """First against last tenth of the full batches."""
    tenth = max(1, len(frames) // 10)
    first, last = frames[:tenth], frames[-tenth:]
    pairs = [
        (a.milliseconds, b.milliseconds)
        for a in first
        for b in last
        if abs(a.context - b.context) <= SAME_CONTEXT * a.context
    ]
    if not pairs:
        return {"holds": False, "why": "no frames of equal context", "full_frames": len(frames)}
    before, after = median(a for a, _ in pairs), median(b for _, b in pairs)
    start, end = max(reserved[: len(reserved) // 10 + 1]), reserved[-1]
    return {
        "holds": abs(after / before - 1) <= ALLOWED_DRIFT and end <= start,
        "first_tenth_frame_ms": before,
        "last_tenth_frame_ms": after,
        "drift": after / before - 1,
        "reserved_gb_after_first_tenth": start / 1e9,
        "reserved_gb_at_end": end / 1e9,
        "full_frames": len(frames),
    }


if __name__ == "__main__":
    sys.exit(main())
