"""A bench's figures for the terminal, and the published ones beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from fishcli.settings import config_text

# Title of a column, key of the run's figures, format.
COLUMNS = (
    ("in flight", "concurrency", "d"),
    ("slots", "max_batch_size", "d"),
    ("rows", "rows", "d"),
    ("RTF mean", "rtf_mean", ".3f"),
    ("median", "rtf_median", ".3f"),
    ("p95", "rtf_p95", ".3f"),
    ("TTFP mean, s", "ttfp_mean_s", ".3f"),
    ("p95", "ttfp_p95_s", ".3f"),
    ("req/s", "requests_per_s", ".3f"),
    ("audio-s/s", "audio_s_per_s", ".2f"),
    ("frame, ms", "frame_ms", ".2f"),
    ("AR RTF", "ar_rtf", ".3f"),
    ("prefill, ms", "prefill_ms", ".1f"),
    ("occupancy", "occupancy", ".0%"),
    ("peak GB", "peak_memory_gb", ".1f"),
)


def run_table(document: Mapping[str, Any]) -> Table:
    """One line a concurrency."""
    weights = " - random weights: speed only" if document["weights"] == "random" else ""
    machine = document["machine"]
    where = machine["gpu"] if machine["gpus"] else f"CPU, {machine['cpu_cores']} cores"
    table = Table(title=f"{document['model']} on {where}, {document['dtype']}{weights}")
    for title, _, _ in COLUMNS:
        table.add_column(title, justify="right")
    for run in document["runs"]:
        table.add_row(*(format(run[key], style) for _, key, style in COLUMNS))
    codec = document["codec"]
    table.caption = (
        f"codec alone: decodes {codec['decode_audio_s_per_s']:.0f} and encodes "
        f"{codec['encode_fp32_audio_s_per_s']:.0f} audio-s/s in float32; "
        f"first chunk of four frames {codec['first_chunk_ms']:.1f} ms"
    )
    return table


def published_table() -> Table:
    """What others state, each line with its own GPU and load: not measured in this run."""
    figures = json.loads(config_text("published.json"))["figures"]
    table = Table(title="For orientation: published or measured elsewhere, not in this run")
    names = ("system", "gpu", "load", "kind")
    numbers = ("rtf", "ttfp_s", "requests_per_s", "audio_s_per_s")
    for name in (*names, "RTF", "TTFP, s", "req/s", "audio-s/s"):
        table.add_column(name)
    for line in figures:
        cells = [str(line.get(name, "")) for name in (*names, *numbers)]
        table.add_row(*cells)
    return table
