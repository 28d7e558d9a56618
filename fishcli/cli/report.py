"""``fishcli report``: count a run's ledger again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of a run.")],
) -> None:
    """Rebuild report.json and report.html in DIR from the ledger and show what the folder holds.

    Figures that only a run can measure stay as the last run left them.
    """
    from fishcli.report import PAGE_FILE, REPORT_FILE, rebuild  # noqa: PLC0415 - numpy

    totals = rebuild(folder)["folder"]
    done = totals["ok"] + totals["capped"]
    typer.echo(f"{done} files ({totals['capped']} capped), {totals['failed']} rows failed")
    for reason, count in sorted(totals["reasons"].items()):
        typer.echo(f"  {reason}: {count}")
    typer.echo(f"{totals['audio_s']:.1f} s of audio, {totals['bytes'] / 1e6:.1f} MB")
    typer.echo(f"wrote {folder / REPORT_FILE} and {folder / PAGE_FILE}")
