"""2,000 mixed rows in shuffled order: is a frame at the end as fast as at the beginning?

``python scripts/soak_engine.py [--model random:s2-pro] [--rows 2000] [--slots 64] [--json FILE]``

Runs the engine alone over rows of very different lengths and takes the time of every look
at which all slots were full and no prompt was read. Holds if the median time a frame of the
last tenth is within 3 % of the first tenth's at equal context (looks are compared whose mean
number of cached positions agrees within 5 %), reserved device memory does not grow after the
first tenth, and no block is lost.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import torch

from fishcli.bench.rows import longest_text, make_rows
from fishcli.bench.run import PROMPT_OVERHEAD, commit, machine
from fishcli.checkpoint import resolve
from fishcli.engine import Engine, ListSource
from fishcli.estimate import estimate_frames
from fishcli.pipeline.build import build_engine
from fishcli.pipeline.memory import Need, plan_memory
from fishcli.pipeline.models import Models, load_models, pick_device, pick_ops
from fishcli.prompt import PromptBuilder
from fishcli.records import Request

ALLOWED_DRIFT = 0.03
SAME_CONTEXT = 0.05


@dataclass(frozen=True, slots=True)
class Look:
    """One stretch of frames between two hand-overs."""

    frame_ms: float
    context: float  # mean cached positions of the rows
    reserved: int  # bytes of the device
    steady: bool  # all slots full, no prompt read


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
    looks = run(models, arguments.rows, arguments.slots)
    result = judge(looks) | {
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


def run(models: Models, count: int, slots: int) -> list[Look]:
    """Generate all rows; the engine checks its blocks at the end."""
    requests, need = make_requests(models, count)
    config = models.checkpoint.config
    memory = plan_memory(config, models.weight_bytes, need, slots, models.device, models.dtype)
    engine = build_engine(models, memory)
    looks: list[Look] = []
    frames, prefills, last = 0, 0, time.perf_counter()
    for _ in engine.generate(ListSource(requests)):
        now, stats = time.perf_counter(), engine.stats
        if stats.frames > frames:
            looks.append(
                Look(
                    frame_ms=1000 * (now - last) / (stats.frames - frames),
                    context=mean_context(engine),
                    reserved=reserved(models.device),
                    steady=engine.active == slots and stats.prefill_rows == prefills,
                )
            )
        frames, prefills, last = stats.frames, stats.prefill_rows, now
    return looks


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


def mean_context(engine: Engine) -> float:
    """Mean cached positions of the running rows."""
    rows = engine.rows
    return mean(row.cached for row in rows) if rows else 0.0


def reserved(device: torch.device) -> int:
    """Bytes that torch holds of the device."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def judge(looks: list[Look]) -> dict[str, object]:
    """First against last tenth of the steady looks."""
    steady = [look for look in looks if look.steady]
    tenth = max(1, len(steady) // 10)
    first, last = steady[:tenth], steady[-tenth:]
    pairs = [
        (a.frame_ms, b.frame_ms)
        for a in first
        for b in last
        if abs(a.context - b.context) <= SAME_CONTEXT * a.context
    ]
    if not pairs:
        return {"holds": False, "why": "no looks of equal context", "steady_looks": len(steady)}
    before, after = median(a for a, _ in pairs), median(b for _, b in pairs)
    start, end = max(look.reserved for look in looks[: len(looks) // 10 + 1]), looks[-1].reserved
    return {
        "holds": abs(after / before - 1) <= ALLOWED_DRIFT and end <= start,
        "first_tenth_frame_ms": before,
        "last_tenth_frame_ms": after,
        "drift": after / before - 1,
        "reserved_gb_after_first_tenth": start / 1e9,
        "reserved_gb_at_end": end / 1e9,
        "looks": len(looks),
        "steady_looks": len(steady),
    }


if __name__ == "__main__":
    sys.exit(main())
