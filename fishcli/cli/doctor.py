"""``fishcli doctor``: what this machine can run, and why not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fishcli.errors import UsageError

FAILED = 1


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            help="Load this model strictly, every tensor and token id.", show_default="none"
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or cuda:N; where --model is loaded.")
    ] = "auto",
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="With --model: also compare its arithmetic with float32 and speak five sentences.",
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where --full leaves the sentences.")
    ] = Path("out/doctor"),
) -> None:
    """Say what this machine can run and why not, line by line.

    Exit code 0: nothing failed; 1: something did.
    """
    if full and model is None:
        raise UsageError("--full needs --model")
    from fishcli.doctor import examine_machine, examine_model  # noqa: PLC0415 - loads torch

    spoken = out if full else None
    findings = examine_machine() if model is None else examine_model(model, device, spoken)
    failed = 0
    for finding in findings:
        typer.echo(str(finding))
        failed += finding.verdict == "FAIL"
    raise typer.Exit(FAILED if failed else 0)
