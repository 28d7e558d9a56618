"""The bench's tables."""

import io
import json

from rich.console import Console

from fishcli.bench.table import published_table, tables
from fishcli.settings import config_text


def shown(*things):
    console = Console(file=io.StringIO(), width=200)
    for thing in things:
        console.print(thing)
    return console.file.getvalue()


def test_what_was_measured_is_shown_and_what_was_not_is_left_out(bench):
    text = shown(*tables(bench.document))
    assert "one frame of random:mini" in text
    assert "what each optimisation of random:mini is worth" in text
    assert "random weights: speed only" in text
    assert "codec alone: decodes" in text
    bare = bench.document | {"frames": [], "ablations": [], "runs": []}
    (only,) = tables(bare)
    assert "not in this run" in shown(only)


def test_an_ablation_shows_both_sides_and_their_ratio(bench):
    line = {"name": "thing", "measured": "work", "off": {"a_ms": 6.0}, "on": {"a_ms": 1.5}}
    bare = bench.document | {"frames": [], "runs": [], "ablations": [line]}
    row = next(text for text in shown(*tables(bare)).splitlines() if "thing" in text)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "thing",
        "work",
        "a_ms",
        "6",
        "1.5",
        "4.00",
    ]


def test_a_traces_kernels_are_listed_longest_first(bench):
    trace = {
        "slots": 8,
        "device_idle": 0.01,
        "host_waits_per_frame": 0.0,
        "span_us_per_frame": 7000.0,
        "kernels_us": {"gemm": 6000.0, "norm": 500.0},
    }
    text = " ".join(shown(*tables(bench.document | {"traces": [trace]})).split())
    assert "batch 8: device idle 1.0%" in text
    assert text.index("gemm") < text.index("norm")


def test_published_figures_name_their_source_gpu_and_load():
    text = shown(published_table())
    for figure in json.loads(config_text("published.json"))["figures"]:
        assert figure["system"] in text
        assert f"{figure['gpu']}, {figure['load']}" in text
    assert "measured by us" in text
