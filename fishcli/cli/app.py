"""The ``fishcli`` command: its subcommands, and how errors reach the user."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fishcli import __version__
from fishcli.cli.bench import bench
from fishcli.cli.check import check
from fishcli.cli.clone import clone
from fishcli.cli.doctor import doctor
from fishcli.cli.report import report
from fishcli.cli.synth import synth
from fishcli.errors import FishError

INTERRUPTED = 130
EXIT_CODES = (
    "Exit codes: 0 all rows ok, 1 the run failed, 2 bad usage, refused settings or no valid row, "
    "3 some rows capped or failed, 130 interrupted, 143 terminated."
)


class Commands(TyperGroup):
    """The group of subcommands: an error becomes one line on stderr and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FishError as error:
            _explain(str(error), ctx)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:  # a fault of ours, or a library's: one line all the same
            if hasattr(error, "format_message"):  # a usage error, which Typer shows itself
                raise
            kind = type(error).__name__
            _explain(f"unexpected {kind}: {error} (`fishcli --debug …` shows where)", ctx)
            raise typer.Exit(FishError.exit_code) from None


def _explain(message: str, ctx: Any) -> None:
    """Show the one line, after a traceback if ``--debug`` asked for it."""
    if ctx.params["debug"]:
        traceback.print_exc()
    sys.stderr.write(f"fishcli: error: {message}\n")


def command_line() -> typer.Typer:
    """The whole command line, put together."""
    app = typer.Typer(
        cls=Commands,
        epilog=EXIT_CODES,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(fishcli)
    for command in (synth, clone, bench, check, report, doctor):
        app.command()(command)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fishcli {__version__}")
        raise typer.Exit


def fishcli(
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="FISHCLI_DEBUG", help="Show a traceback with an error."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Batch speech synthesis for corpora with Fish Speech S2 Pro."""


def main() -> None:
    """Entry point of the ``fishcli`` script."""
    command_line()(prog_name="fishcli")
