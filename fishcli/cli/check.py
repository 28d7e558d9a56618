"""``fishcli check``: is a manifest what it should be? No model is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fishcli.errors import UsageError
from fishcli.estimate import FRAME_RATE, estimate_frames
from fishcli.records import BadRow, Row

if TYPE_CHECKING:
    from fishcli.manifest import RowSource

SOME_BAD = 3


@dataclass(slots=True)
class Tally:
    """What was found in the rows so far."""

    valid: int = 0
    bad: int = 0
    frames: int = 0  # expected, of the valid rows
    references: set[Path] = field(default_factory=set)

    def add(self, row: Row | BadRow) -> None:
        """Count ``row``."""
        if isinstance(row, BadRow):
            self.bad += 1
            return
        self.valid += 1
        self.frames += estimate_frames(row.text)
        if row.reference is not None:
            self.references.add(row.reference.path)

    def __str__(self) -> str:
        return (
            f"{self.valid + self.bad} rows: {self.valid} valid, {self.bad} bad; about "
            f"{self.frames / FRAME_RATE:.0f} s of audio; reference files: {len(self.references)}"
        )


def check(
    manifest: Annotated[
        str, typer.Argument(metavar="MANIFEST", help="As for synth; - reads standard input.")
    ],
) -> None:
    """Validate MANIFEST without a model: one line a problem, counts at the end.

    Exit code 0: every row is good; 3: some are bad; 2: none is good, or two rows would write
    the same file.
    """
    from fishcli.manifest import RowDefaults, RowSource, open_manifest  # noqa: PLC0415 - pyarrow

    with open_manifest(manifest) as opened:
        tally = _read(RowSource(opened, RowDefaults()))
    typer.echo(str(tally))
    if not tally.valid:
        raise UsageError(f"{manifest} has no valid row")
    raise typer.Exit(SOME_BAD if tally.bad else 0)


def _read(source: RowSource) -> Tally:
    """Say what is wrong with each row; :class:`UsageError` where two would share a file."""
    from fishcli.manifest.sameids import SameIds  # noqa: PLC0415 - numpy

    tally, ids = Tally(), SameIds()
    for row in source:
        tally.add(row)
        ids.add(row.id)
        if isinstance(row, BadRow):
            for problem in row.problems:
                typer.echo(problem)
        else:
            for warning in row.warnings:
                typer.echo(f"{source.manifest.unit} {row.line}: warning: {warning}")
    ids.check(lambda: source)
    return tally
