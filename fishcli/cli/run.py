"""What commands do with a model: run the pipeline, plan a run, keep a voice. Loads torch."""

from __future__ import annotations

from pathlib import Path

import torch
import typer
from rich.console import Console

from fishcli.audio import read_audio
from fishcli.checkpoint import resolve
from fishcli.cli.progress import observer
from fishcli.errors import RowError, RunError, UsageError
from fishcli.estimate import FRAME_RATE
from fishcli.fingerprint import Fingerprinter, ReferenceDigests
from fishcli.ledger import Ledger
from fishcli.manifest import STDIN, open_manifest
from fishcli.manifest.references import VOICE_SUFFIX
from fishcli.outdir import OutputFolder
from fishcli.pipeline import synthesize
from fishcli.pipeline.models import pick_device
from fishcli.pipeline.synthesis import row_source
from fishcli.plan import Plan, Policy, scan
from fishcli.records import Reference
from fishcli.report import PAGE_FILE, report_table
from fishcli.settings import SynthSettings
from fishcli.voices import Voice, VoiceBook, load_voice, save_voice

SOME_BAD = 3


def run(manifest: str | Path, out: Path, settings: SynthSettings) -> int:
    """Synthesize ``manifest`` into ``out``; the exit code.

    Progress goes to standard error; the report's table, and where things are, to standard
    output.
    """
    with observer() as watching:
        report = synthesize(manifest, out, settings, watching)
    Console().print(report_table(report))
    if report.ended != "complete":
        typer.echo("The same command goes on where this run ended.")
    for what, where in (("files", "wavs"), ("rows", "results.parquet"), ("report", PAGE_FILE)):
        if (out / where).exists():
            typer.echo(f"{what}: {out / where}")
    return report.exit_code


def dry_run(manifest: str | Path, out: Path, settings: SynthSettings) -> int:
    """Say what :func:`run` would do, and write nothing; the exit code.

    Refuses what a run would refuse.
    """
    checkpoint = resolve(settings.model, pick_device(settings.device))
    folder = OutputFolder(out, settings.layout)
    if folder.settings() is not None and not settings.overwrite:
        folder.claim({"model": checkpoint.identity, **settings.run_wide()})
    fingerprinter = Fingerprinter(
        checkpoint.identity, settings.audio_format, settings.subtype, ReferenceDigests()
    )
    policy = Policy(settings.retry_failed, settings.overwrite, settings.limit)
    with open_manifest(manifest) as opened, Ledger.read(out) as ledger:
        if manifest != STDIN:
            folder.refuse_input(Path(manifest))
        plan = scan(row_source(opened, settings), ledger, fingerprinter, policy, folder)
    for line in (*checkpoint.notices, *_describe(plan, checkpoint.name)):
        typer.echo(line)
    if not plan.valid:
        raise UsageError(f"{manifest} has no valid row")
    return SOME_BAD if plan.counts.failed else 0


def _describe(plan: Plan, model: str) -> list[str]:
    more = plan.problem_count - len(plan.problems)
    counts = plan.counts
    lines = [*plan.problems, *([f"… and {more} more problems"] if more else [])]
    lines += [
        f"{counts.rows} rows: {counts.todo} to do, {counts.skipped} done before, "
        f"{counts.failed} bad or failed for good, {counts.left} not asked for",
        f"{model} would make about {plan.estimated_frames / FRAME_RATE:.0f} s of audio with "
        f"{plan.distinct_references} reference files",
    ]
    return lines


def check_voice(reference: Reference) -> None:
    """Raise :class:`UsageError` if a voice that every row shares is none, before any work."""
    try:
        if reference.kind == "voice":
            load_voice(reference.path, None)
        else:
            read_audio(reference.path)
    except RowError as error:
        raise UsageError(str(error)) from None


def keep_voice(reference: Reference, path: Path, settings: SynthSettings) -> Reference:
    """Encode a clip with the codec of the run's model and write its voice file.

    The file's name gets ``.voice`` if it has another ending. Raises :class:`UsageError` for
    a clip that makes no voice, :class:`RunError` if the disk refuses.
    """
    if path.suffix != VOICE_SUFFIX:
        path = path.with_name(path.name + VOICE_SUFFIX)
    device = pick_device(settings.device)
    checkpoint = resolve(settings.model, device)
    book = VoiceBook(checkpoint.load_codec(device, torch.float32), checkpoint.codec_identity)
    try:
        (voice,) = book.lookup([reference])
    finally:
        book.close()
    if not isinstance(voice, Voice):
        raise UsageError(str(voice))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_voice(path, voice, checkpoint.codec_identity)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    return Reference("voice", path.absolute())
