"""``fishcli clone``: a voice from one clip, tried on a few sentences."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fishcli.asr import AsrUnavailableError, load_transcriber
from fishcli.cli import options
from fishcli.cli.options import FILES, VOICE
from fishcli.errors import UsageError
from fishcli.records import Reference
from fishcli.settings import SynthSettings

SAMPLE_TEXT = "Hello, this is the voice of the recording."


def clone(  # noqa: PLR0913 - one parameter a flag
    *,
    ref: Annotated[
        Path, typer.Option(metavar="FILE", help="The clip: 3 to 30 seconds of one voice.")
    ],
    ref_text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What is said in it; else the .lab or .txt beside it, else speech recognition "
            "where that is installed.",
            rich_help_panel=VOICE,
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="What to say; may be repeated. Else the lines of standard input if it is piped, "
            "else a sample sentence.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Output folder.", rich_help_panel=FILES)
    ] = Path("out/clone"),
    save_voice: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the voice's codes and transcript in FILE.voice, to be named as `voice` in "
            "manifests.",
            rich_help_panel=FILES,
        ),
    ] = None,
    asr_model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder of a faster-whisper model; else FISHCLI_ASR_MODEL, else one in the cache.",
            rich_help_panel=VOICE,
        ),
    ] = None,
    model: options.Model = None,
    device: options.Device = None,
    max_batch_size: options.MaxBatchSize = None,
    deterministic: options.Deterministic = False,
    overwrite: options.Overwrite = False,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    max_new_tokens: options.MaxNewTokens = None,
    seed: options.Seed = None,
    audio_format: options.Format = None,
    subtype: options.Subtype = None,
) -> None:
    """Say TEXT in the voice of a clip."""
    wanted = options.settings_from(
        model=model,
        device=device,
        max_batch_size=options.batch_size(max_batch_size),
        deterministic=deterministic,
        overwrite=overwrite,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        seed=seed,
        audio_format=audio_format,
        subtype=subtype,
    )
    clip = _clip(ref)
    reference = Reference("audio", clip, _transcript(clip, ref_text, asr_model))
    from fishcli.cli.run import check_voice, keep_voice, run  # noqa: PLC0415 - loads torch

    check_voice(reference)
    if save_voice is not None:
        reference = keep_voice(reference, save_voice, wanted)
        typer.echo(f"voice: {reference.path}")
    rows = [_row(line, reference, wanted) for line in _texts(text)]
    with tempfile.TemporaryDirectory(prefix="fishcli-") as folder:
        manifest = Path(folder) / "clone.jsonl"
        manifest.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        exit_code = run(manifest, out, _run_settings(wanted))
    for row in rows:
        for file in sorted(out.glob(f"wavs/{row['id']}.*")):
            typer.echo(str(file))
    raise typer.Exit(exit_code)


def _clip(ref: Path) -> Path:
    """The clip's absolute path; :class:`UsageError` if it is missing or a voice file."""
    from fishcli.manifest.references import VOICE_SUFFIX  # noqa: PLC0415 - loads pyarrow

    if ref.suffix == VOICE_SUFFIX:
        raise UsageError(f"--ref {ref}: a clip is expected; a voice file goes to synth --voice")
    return options.existing("--ref", ref)


def _texts(given: list[str] | None) -> list[str]:
    """What to say: ``--text``, else the lines of a pipe or file on standard input."""
    if given:
        return given
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # closed
        return [SAMPLE_TEXT]
    lines = sys.stdin if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) else ()
    return [line.strip() for line in lines if line.strip()] or [SAMPLE_TEXT]


def _transcript(clip: Path, given: str | None, asr_model: str | None) -> str:
    """What is said in ``clip``; :class:`UsageError` naming the remedies if nobody knows."""
    text = options.transcript(clip, given)
    if text:
        return text
    try:
        transcriber = load_transcriber(asr_model)
    except AsrUnavailableError as error:
        raise UsageError(
            f"{clip} has no transcript. Give it with --ref-text, put it in {clip.stem}.txt (or "
            f".lab) beside the clip, or let speech recognition write it: {error}"
        ) from None
    heard = transcriber.transcribe(clip)
    if not heard:
        raise UsageError(f"no speech was recognised in {clip}: give its transcript as --ref-text")
    typer.echo(f"heard in {clip}: {heard}", err=True)
    return heard


def _row(text: str, reference: Reference, wanted: SynthSettings) -> dict[str, Any]:
    """A manifest row; its id tells voice and text apart, so no file replaces another's.

    Sampling stands in the row: the next clone into the same folder may choose its own.
    """
    voice = {"voice": str(reference.path)}
    if reference.text is not None:
        voice = {"ref_audio": str(reference.path), "ref_text": reference.text}
    with reference.path.open("rb") as file:
        digest = hashlib.file_digest(file, hashlib.blake2b)
    digest.update(json.dumps([text, reference.text]).encode())
    stem = re.sub(r"\W+", "-", reference.path.stem, flags=re.ASCII)
    return {
        "id": f"{stem}-{digest.hexdigest()[:8]}",
        "text": text,
        **voice,
        **asdict(wanted.sampling),
        "max_new_tokens": wanted.max_new_tokens,
        "seed": wanted.seed,
    }


def _run_settings(wanted: SynthSettings) -> SynthSettings:
    """``wanted`` without what stands in the rows."""
    defaults = SynthSettings.defaults()
    return replace(
        wanted,
        sampling=defaults.sampling,
        max_new_tokens=defaults.max_new_tokens,
        seed=defaults.seed,
    )
