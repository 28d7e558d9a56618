"""Measures what the pipeline costs: a whole run against a bare loop over the same parts.

Run from the repository on a quiet machine: ``python scripts/bench_overhead.py [--json FILE]``.

Pipeline: ``synthesize`` of 200 short rows with the toy checkpoint on the CPU, timed by its
own report from the loaded models to the last recorded file (``generate_s``): building the
engine, preparing rows, generating, decoding, writing with fsync, the ledger.

Bare loop: the same engine on the same requests in the same order, made beforehand, so the
same batches; each group of finished rows goes straight through ``decode_rows`` and
``write_audio``. One thread of Python, no fsync, no ledger. It is measured with one torch
thread and with all of them, and the faster counts.

All are run in turn; what is compared is their medians. The script fails if the files of
pipeline and bare loop differ in a single byte, or if the pipeline takes more than 1.15
times as long.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fishcli.audio import write_audio
from fishcli.bench.machine import commit, machine
from fishcli.checkpoint import resolve
from fishcli.decoder import decode_rows
from fishcli.engine import ListSource
from fishcli.fingerprint import Fingerprinter, ReferenceDigests
from fishcli.ledger import Ledger
from fishcli.manifest import open_manifest
from fishcli.metrics import Progress
from fishcli.outdir import OutputFolder
from fishcli.pipeline import row_source, synthesize
from fishcli.pipeline.build import build_engine
from fishcli.pipeline.memory import MemoryPlan, memory_for
from fishcli.pipeline.models import Models, load_models
from fishcli.pipeline.prepare import Prepared, Preparer
from fishcli.plan import Policy, scan
from fishcli.prompt import PromptBuilder
from fishcli.records import Request
from fishcli.settings import SynthSettings
from fishcli.threads import CpuThreads, torch_threads
from fishcli.voices import VoiceBook

ALLOWED = 1.15
CPU = torch.device("cpu")
WORDS = ("the", "harbour", "lights", "went", "out", "one", "after", "another", "in", "the", "rain")


class Silent:
    """An observer that shows nothing."""

    def note(self, line: str) -> None:
        """Show nothing."""

    def progress(self, progress: Progress) -> None:
        """Show nothing."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="fishcli-overhead-") as folder:
        figures = measure(Path(folder), arguments.rows, arguments.repeats)
    show(figures)
    if arguments.json:
        document = {
            "commit": commit(),
            "date": time.strftime("%Y-%m-%d"),
            "machine": {**machine(CPU), "load_before": round(load, 2)},
            "rows": arguments.rows,
            **figures,
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0 if figures["ratio"] <= ALLOWED else 1


def measure(folder: Path, rows: int, repeats: int) -> dict[str, Any]:
    """Seconds of both, in turn, after one run of each that does not count."""
    manifest = folder / "rows.jsonl"
    write_manifest(manifest, rows)
    settings = replace(SynthSettings.defaults(), model="mini", device="cpu")
    models = load_models(resolve("mini", CPU), CPU)
    requests, memory = prepare(manifest, settings, models, folder)
    threads = CpuThreads.share_out(torch.get_num_threads())
    pipeline_s, command_s, bare_s, bare_all_s = [], [], [], []
    for turn in range(repeats + 1):
        out, plain = folder / f"out-{turn}", folder / f"plain-{turn}"
        started = time.perf_counter()
        report = synthesize(manifest, out, settings, Silent())
        command_s.append(time.perf_counter() - started)
        pipeline_s.append(report.stages["generate_s"])
        with torch_threads(1):
            bare_s.append(bare_loop(models, memory, requests, plain))
        if threads == CpuThreads(1, 1):  # other numbers of threads may round other bits
            compare(out / "wavs", plain, rows)
        bare_all_s.append(bare_loop(models, memory, requests, folder / f"all-{turn}"))
        say(
            f"{turn}: pipeline {pipeline_s[-1]:.2f} s, bare loop {bare_s[-1]:.2f} s, "
            f"with all threads {bare_all_s[-1]:.2f} s"
        )
    fastest = min(median(bare_s[1:]), median(bare_all_s[1:]))
    return {
        "ratio": round(median(pipeline_s[1:]) / fastest, 3),
        "allowed": ALLOWED,
        "threads": asdict(threads),
        "pipeline_s": rounded(pipeline_s[1:]),
        "bare_loop_s": rounded(bare_s[1:]),
        "bare_loop_all_threads_s": rounded(bare_all_s[1:]),
        "whole_command_s": rounded(command_s[1:]),
        "audio_s": round(report.audio_s, 1),
        "slots": memory.slots,
    }


def write_manifest(path: Path, rows: int) -> None:
    """One to five words a row."""
    draw = random.Random(0)
    lines = [
        {"id": f"row-{n:04}", "text": " ".join(draw.choices(WORDS, k=draw.randint(1, 5))) + "."}
        for n in range(rows)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def prepare(
    manifest: Path, settings: SynthSettings, models: Models, folder: Path
) -> tuple[list[Request], MemoryPlan]:
    """What the pipeline would give to the engine, and the engine's size."""
    out = OutputFolder(folder / "unused")
    prints = Fingerprinter(models.checkpoint.identity, "wav", "PCM_16", ReferenceDigests())
    with open_manifest(manifest) as opened, Ledger.read(out.path) as ledger:
        plan = scan(row_source(opened, settings), ledger, prints, Policy(), out)
        rows = [row for window in plan.windows() for row in window]
    memory = memory_for(plan, models, settings.max_batch_size)
    preparer = Preparer(
        PromptBuilder(models.tokenizer, models.checkpoint.config),
        VoiceBook(models.codec, models.checkpoint.codec_identity),
        prints,
        memory.capacity,
    )
    prepared = [row for row in preparer.prepare(rows) if isinstance(row, Prepared)]
    assert len(prepared) == len(rows)
    return [row.request for row in prepared], memory


def bare_loop(models: Models, memory: MemoryPlan, requests: list[Request], folder: Path) -> float:
    """Generate, decode and write ``requests``, one after the other; the seconds."""
    folder.mkdir()
    started = time.perf_counter()
    engine = build_engine(models, memory)
    for group in engine.generate(ListSource(requests)):
        for decoded in decode_rows(models.codec, group):
            for row in decoded:
                if len(row.pcm):
                    path = folder / f"{row.row.id}.wav"
                    write_audio(path, row.pcm, models.codec.sample_rate, "wav", "PCM_16")
    return time.perf_counter() - started


def compare(ours: Path, plain: Path, rows: int) -> None:
    """Both must have done the same work: the same files, byte for byte."""
    names = sorted(path.name for path in plain.iterdir())
    assert names == sorted(path.name for path in ours.iterdir())
    _, different, missing = filecmp.cmpfiles(ours, plain, names, shallow=False)
    assert not different and not missing, (different, missing)
    assert len(names) >= 0.9 * rows, f"only {len(names)} of {rows} rows have audio"


def rounded(seconds: list[float]) -> list[float]:
    return [round(value, 3) for value in seconds]


def show(figures: dict[str, Any]) -> None:
    for name, value in figures.items():
        print(f"{name:>16}: {value}")


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
