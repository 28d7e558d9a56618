"""A bench's figures for the terminal, and the published ones beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Column, Table

from fishcli.settings import config_text

TRACED_KERNELS = 20  # lines of a trace

# A line's title, the key of the run's figure, its format.
LINES = (
    ("slots", "max_batch_size", "d"),
    ("rows", "rows", "d"),
    ("RTF mean", "rtf_mean", ".3f"),
    ("RTF median", "rtf_median", ".3f"),
    ("RTF p95", "rtf_p95", ".3f"),
    ("TTFP mean, s", "ttfp_mean_s", ".3f"),
    ("TTFP p95, s", "ttfp_p95_s", ".3f"),
    ("requests/s", "requests_per_s", ".3f"),
    ("audio-s/s", "audio_s_per_s", ".2f"),
    ("batch occupancy", "occupancy", ".0%"),
    ("one frame, ms", "frame_ms", ".2f"),
    ("RTF of the AR alone", "ar_rtf", ".3f"),
    ("prefill of a full batch, ms", "prefill_ms", ".1f"),
    ("peak memory, GB", "peak_memory_gb", ".1f"),
)


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """What was measured, then what others state."""
    if document["frames"]:
        yield frames_table(document)
        yield prefill_table(document)
    for traced in document["traces"]:
        yield trace_table(traced)
    if document["ablations"]:
        yield ablation_table(document)
    if document["runs"]:
        yield run_table(document)
    yield published_table()


def run_table(document: Mapping[str, Any]) -> Table:
    """One column a concurrency."""
    weights = "\nrandom weights: speed only" if document["weights"] == "random" else ""
    machine = document["machine"]
    where = machine["gpu"] if machine["gpus"] else f"CPU, {machine['cpu_cores']} cores"
    table = Table(title=f"{document['model']} on {where}, {document['dtype']}{weights}")
    table.add_column("rows in flight")
    for run in document["runs"]:
        table.add_column(str(run["concurrency"]), justify="right")
    for title, key, style in LINES:
        table.add_row(title, *(format(run[key], style) for run in document["runs"]))
    codec = document["codec"]
    table.caption = (
        f"codec alone: decodes {codec['decode_audio_s_per_s']:.0f} and encodes "
        f"{codec['encode_fp32_audio_s_per_s']:.0f} audio-s/s in float32;\n"
        f"first chunk of four frames {codec['first_chunk_ms']:.1f} ms"
    )
    return table


def frames_table(document: Mapping[str, Any]) -> Table:
    """One line a batch size: the engine's frame against what it must read."""
    ceiling = document["ceiling"]["read_tb_s"]
    table = Table(title=f"one frame of {document['model']}; memory reads at {ceiling:.2f} TB/s")
    for title in ("batch", "ms", "RTF", "GB read", "TB/s", "of ceiling", "prefill, ms"):
        table.add_column(title, justify="right")
    for line in document["frames"]:
        table.add_row(
            str(line["slots"]),
            f"{line['frame_ms']:.2f}",
            f"{line['ar_rtf']:.4f}",
            f"{line['frame_bytes'] / 1e9:.1f}",
            f"{line['achieved_tb_s']:.2f}",
            f"{line['achieved_tb_s'] / ceiling:.0%}",
            f"{line['prefill_ms']:.1f}",
        )
    return table


def prefill_table(document: Mapping[str, Any]) -> Table:
    """One line a prompt length: reading the prompts of one row and of several."""
    table = Table(title=f"reading prompts, {document['model']}")
    for title in ("columns", "rows", "ms", "columns/s"):
        table.add_column(title, justify="right")
    for line in document["prefill"]:
        rate = line["rows"] * line["columns"] / line["prefill_ms"] * 1000
        cells = (str(line["columns"]), str(line["rows"]), f"{line['prefill_ms']:.1f}")
        table.add_row(*cells, f"{rate:.0f}")
    return table


def trace_table(traced: Mapping[str, Any]) -> Table:
    """The kernels of a frame, the longest first."""
    title = (
        f"batch {traced['slots']}: device idle {traced['device_idle']:.1%}, waits for the newest "
        f"work {traced['host_waits_per_frame']:.3f} a frame, "
        f"{traced['span_us_per_frame'] / 1000:.2f} ms a frame"
    )
    table = Table("kernel", Column("µs a frame", justify="right"), title=title)
    for name, microseconds in list(traced["kernels_us"].items())[:TRACED_KERNELS]:
        table.add_row(name, f"{microseconds:.0f}")
    return table


def ablation_table(document: Mapping[str, Any]) -> Table:
    """One line a figure of every optimisation: without it, with it, and their ratio."""
    columns = ("without", "with", "factor")
    table = Table(
        "optimisation",
        "measured",
        "figure",
        *(Column(name, justify="right") for name in columns),
        title=f"what each optimisation of {document['model']} is worth",
    )
    for line in document["ablations"]:
        what = [line["name"], line["measured"]]
        for figure, off in line["off"].items():
            on = line["on"][figure]
            factor = f"{off / on:.2f}" if on else ""
            table.add_row(*what, figure, f"{off:.3g}", f"{on:.3g}", factor)
            what = ["", ""]
    return table


def published_table() -> Table:
    """What others state, each line with its own GPU and load: not measured in this run."""
    figures = json.loads(config_text("published.json"))["figures"]
    table = Table(title="For orientation: published or measured elsewhere, not in this run")
    numbers = ("rtf", "ttfp_s", "requests_per_s", "audio_s_per_s")
    table.add_column("system")
    table.add_column("GPU, load")
    for name in ("RTF", "TTFP, s", "req/s", "audio-s/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in figures:
        mark = "" if line["kind"] == "published" else f" ({line['kind']})"
        cells = [str(line.get(name, "")) for name in numbers]
        table.add_row(line["system"] + mark, f"{line['gpu']}, {line['load']}", *cells)
    return table
