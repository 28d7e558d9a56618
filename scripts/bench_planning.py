"""Measures planning: a million manifest rows, fresh and resumed, JSON Lines and Parquet.

Run from the repository: ``python scripts/bench_planning.py [--rows N] [--json FILE]``.
Makes its manifests, clips and finished files in a temporary folder, plans each case in a
process of its own, and prints wall time (process start included), peak resident memory,
and, apart from planning, the time spent on hashing distinct clips.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from fishcli.fingerprint import Fingerprinter, ReferenceDigests
from fishcli.ledger import Ledger, Record
from fishcli.manifest import RowDefaults, RowSource, open_manifest
from fishcli.outdir import OutputFolder
from fishcli.plan import Plan, Policy, scan
from fishcli.records import Row

BUDGET_S, BUDGET_MB = 60, 1000  # what must hold for a million rows
CLIPS = 1000
BATCH = 10_000
WORDS = ("the", "harbour", "lights", "went", "out", "one", "after", "another", "and", "remembered")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--child", nargs=2, metavar=("MANIFEST", "OUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        plan_once(*map(Path, arguments.child))
        return 0
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="fishcli-planning-") as folder:
        figures = measure(Path(folder), arguments.rows)
    show(figures)
    if arguments.json:
        from fishcli.bench.machine import commit  # noqa: PLC0415 - torch, which planning avoids

        machine = {
            "cpu_cores": len(os.sched_getaffinity(0)),
            "load_before": round(load, 2),
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
        }
        document = {
            "commit": commit(Path(__file__)),
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine,
            "rows": arguments.rows,
            "clips": CLIPS,
            "allowed": {"wall_s": BUDGET_S, "peak_mb": BUDGET_MB},
            "cases": figures,
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    share = arguments.rows / 1_000_000
    within = [f["wall_s"] <= BUDGET_S * share and f["peak_mb"] <= BUDGET_MB for f in figures]
    return 0 if all(within) else 1


def measure(folder: Path, rows: int) -> list[dict[str, Any]]:
    """Plan every case in a fresh process."""
    say("making clips and manifests")
    make_clips(folder / "clips")
    lines, table = folder / "rows.jsonl", folder / "rows.parquet"
    make_manifests(lines, table, rows)
    out = folder / "out"
    figures = [
        plan_in_child("JSONL, fresh", lines, out),
        plan_in_child("Parquet, fresh", table, out),
    ]
    say("making the files and the ledger of a finished run")
    finish(lines, out)
    figures.append(plan_in_child("JSONL, resumed, clips not hashed yet", lines, out))
    figures.append(plan_in_child("JSONL, resumed", lines, out))
    figures.append(plan_in_child("Parquet, resumed", table, out))
    return figures


def make_clips(folder: Path) -> None:
    """Half a second of noise each: about 44 kB."""
    folder.mkdir()
    noise = np.random.default_rng(0)
    for n in range(CLIPS):
        clip = noise.normal(0, 0.1, 22050).astype(np.float32)
        soundfile.write(folder / f"{n}.wav", clip, 44100)


def make_manifests(lines: Path, table: Path, rows: int) -> None:
    """The same rows in both formats: id, text, clip, transcript, one column more."""
    with lines.open("w", encoding="utf-8") as file:
        writer: pq.ParquetWriter | None = None
        for batch in batched_rows(rows):
            file.writelines(json.dumps(row) + "\n" for row in batch)
            part = pa.Table.from_pylist(batch)
            writer = writer or pq.ParquetWriter(table, part.schema)
            writer.write_table(part)
        if writer:
            writer.close()


def batched_rows(rows: int) -> Iterator[list[dict[str, Any]]]:
    draw = random.Random(0)
    for start in range(0, rows, BATCH):
        yield [row(n, draw) for n in range(start, min(start + BATCH, rows))]


def row(n: int, draw: random.Random) -> dict[str, Any]:
    clip = draw.randrange(CLIPS)
    return {
        "id": f"row-{n:08}",
        "text": " ".join(draw.choices(WORDS, k=draw.randint(4, 40))) + ".",
        "ref_audio": f"clips/{clip}.wav",
        "ref_text": f"this is what the voice of clip {clip} says",
        "speaker": f"speaker-{clip}",
    }


def parts(out: Path) -> tuple[OutputFolder, ReferenceDigests, Fingerprinter]:
    folder = OutputFolder(out, "hashed")
    digests = ReferenceDigests(folder.cache / "references.jsonl")
    return folder, digests, Fingerprinter("bench", "wav", "PCM_16", digests)


def finish(manifest: Path, out: Path) -> None:
    """What a finished run leaves: a file and a record for each row (files are empty)."""
    folder, _, fingerprinter = parts(out)
    rows = iter(RowSource(open_manifest(manifest), RowDefaults()))
    with Ledger.open(out) as ledger:
        while records := [record(r, folder, fingerprinter) for r in islice(rows, BATCH)]:
            ledger.append(records)
    (folder.cache / "references.jsonl").unlink()


def record(found: Any, folder: OutputFolder, fingerprinter: Fingerprinter) -> Record:
    assert isinstance(found, Row)
    folder.wav_path(found.id, ".wav").touch()
    return Record(
        found.id,
        fingerprinter.fingerprint(found),
        "ok",
        file=folder.wav_name(found.id, ".wav"),
        frames=100,
        duration_s=4.64,
        finish_reason="stop",
        seed=found.seed,
        model="bench",
        rtf=0.05,
        ttfp_s=0.4,
        wall_s=0.2,
        time=time.time(),
    )


def plan_in_child(case: str, manifest: Path, out: Path) -> dict[str, Any]:
    say(f"planning: {case}")
    command = [sys.executable, __file__, "--child", str(manifest), str(out)]
    started = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    wall = time.perf_counter() - started
    return {"case": case, "wall_s": round(wall, 2), **json.loads(done.stdout)}


def plan_once(manifest: Path, out: Path) -> None:
    """In a process of its own: one scan, its figures as JSON on standard output."""
    folder, digests, fingerprinter = parts(out)
    with open_manifest(manifest) as opened, Ledger.read(out) as ledger:
        source = RowSource(opened, RowDefaults())
        plan = scan(source, ledger, fingerprinter, Policy(), folder)
        first = first_window_s(plan)
    figures = {
        "rows": plan.counts.rows,
        "todo": plan.counts.todo,
        "distinct_clips": plan.distinct_references,
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "clips_hashed": digests.hashed,
        "hashing_s": round(digests.seconds, 2),
        "first_window_s": first,
    }
    print(json.dumps(figures))


def first_window_s(plan: Plan) -> float | None:
    """Seconds from the plan to the first ordered window of rows, if there is one."""
    started = time.perf_counter()
    window = next(plan.windows(), None)
    return round(time.perf_counter() - started, 2) if window else None


def show(figures: list[dict[str, Any]]) -> None:
    heads = f"{'rows':>9} {'to do':>9} {'wall s':>7} {'peak MB':>8} {'hashing s (clips)':>18}"
    print(f"\n{'case':38} {heads}")
    for f in figures:
        hashing = f"{f['hashing_s']:.2f} ({f['clips_hashed']})"
        print(
            f"{f['case']:38} {f['rows']:9} {f['todo']:9} {f['wall_s']:7.1f} {f['peak_mb']:8} "
            f"{hashing:>18}"
        )


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
