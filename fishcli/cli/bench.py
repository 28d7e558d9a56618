"""``fishcli bench``: what this machine reaches, beside what others have published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fishcli.cli import options
from fishcli.errors import UsageError


def bench(  # noqa: PLR0913, PLR0917 - one parameter a flag
    concurrency: Annotated[
        list[str],
        typer.Option(
            "--concurrency",
            metavar="N[,N…]",
            help="Rows in flight in a closed loop; repeatable, or a list; none measures no run.",
        ),
    ] = ["1", "8", "16"],  # noqa: B006 - Typer copies it
    model: Annotated[
        str | None,
        typer.Option(help="What to measure.", show_default="random:s2-pro on CUDA, mini elsewhere"),
    ] = None,
    device: options.Device = None,
    frames: Annotated[
        list[str],
        typer.Option(
            "--frames",
            metavar="N[,N…]",
            help="Batch sizes at which one frame of the engine is timed alone.",
        ),
    ] = [],  # noqa: B006 - Typer copies it
    trace: Annotated[
        list[str],
        typer.Option(
            "--trace",
            metavar="N[,N…]",
            help="Batch sizes at which the engine is profiled: device idle, waits, kernels.",
        ),
    ] = [],  # noqa: B006 - Typer copies it
    ablate: Annotated[
        bool,
        typer.Option("--ablate", help="Measure each optimisation against doing without it."),
    ] = False,
    no_cuda_graph: options.NoCudaGraph = False,
    max_batch_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Slots of the engine.", show_default="the concurrency"),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(metavar="N", help="Rows of each run.", show_default="8 × concurrency"),
    ] = None,
    reference: Annotated[
        str, typer.Option(help="none, shared (one 10-second clip for all), or unique (one each).")
    ] = "none",
    seed: Annotated[int, typer.Option(help="Seed of texts and lengths.")] = 0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write all figures here, after every part."),
    ] = None,
) -> None:
    """Measure the whole pipeline to WAV files, and its parts alone."""
    import msgspec  # noqa: PLC0415 - with the rest, after --help
    from rich.console import Console  # noqa: PLC0415

    from fishcli.bench import BenchSettings, run_bench  # noqa: PLC0415 - loads torch
    from fishcli.bench.table import tables  # noqa: PLC0415
    from fishcli.cli.progress import observer  # noqa: PLC0415
    from fishcli.outdir import atomic_write  # noqa: PLC0415

    settings = BenchSettings(
        model=model or _default_model(device or "auto"),
        device=device or "auto",
        concurrency=_numbers("concurrency", concurrency),
        frames=_numbers("frames", frames),
        trace=_numbers("trace", trace),
        ablate=ablate,
        cuda_graph=not no_cuda_graph,
        max_batch_size=max_batch_size,
        rows=rows,
        reference=reference,  # type: ignore[arg-type]  # the dataclass checks it
        seed=seed,
    )

    def save(document: dict[str, Any]) -> None:
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(json_file, msgspec.json.format(msgspec.json.encode(document), indent=1))

    with observer() as watching:
        document = run_bench(settings, watching, save)
    console = Console()
    for table in tables(document):
        console.print(table)


def _numbers(name: str, values: list[str]) -> tuple[int, ...]:
    """The whole numbers of a repeatable flag; ``none`` or nothing is an empty list."""
    parts = [part for value in values for part in value.split(",") if part != "none"]
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        shown = ",".join(values)
        raise UsageError(f"{name} is {shown!r}: whole numbers like 1,8,16, or none") from None


def _default_model(device: str) -> str:
    from fishcli.pipeline.models import pick_device  # noqa: PLC0415 - loads torch

    return "random:s2-pro" if pick_device(device).type == "cuda" else "mini"
