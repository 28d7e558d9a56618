"""``fishcli synth``: a manifest becomes a folder of sound files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fishcli.cli import options
from fishcli.cli.options import FILES, RUN, SAMPLING, VOICE


def synth(  # noqa: PLR0913 - one parameter a flag
    manifest: Annotated[
        str,
        typer.Argument(
            metavar="MANIFEST",
            help="JSONL, Parquet, CSV, TSV or seed-tts-eval meta.lst; - reads JSONL from "
            "standard input.",
        ),
    ],
    *,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Output folder; a rerun goes on where it ended.")
    ],
    model: options.Model = None,
    device: options.Device = None,
    max_batch_size: options.MaxBatchSize = None,
    deterministic: options.Deterministic = False,
    no_cuda_graph: options.NoCudaGraph = False,
    overwrite: options.Overwrite = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="Do all failed and capped rows again, and nothing else.",
            rich_help_panel=RUN,
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Only the first N rows of the manifest.", metavar="N", rich_help_panel=RUN
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop in good order after this time: 5400, 90m, 1h30m or 01:30:00.",
            rich_help_panel=RUN,
        ),
    ] = None,
    plan_window: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Rows ordered together by voice and length.",
            show_default="65536",
            rich_help_panel=RUN,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Say what would be done, and do nothing; loads no weights.",
            rich_help_panel=RUN,
        ),
    ] = False,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    max_new_tokens: options.MaxNewTokens = None,
    seed: options.Seed = None,
    takes: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Say each text K times with K seeds; ids get -take1, -take2, …",
            show_default="1",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    ref: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Clip whose voice speaks every row that names none.",
            rich_help_panel=VOICE,
        ),
    ] = None,
    ref_text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What is said in --ref; else the .lab or .txt beside it.",
            rich_help_panel=VOICE,
        ),
    ] = None,
    voice: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The same with a file of `fishcli clone --save-voice`.",
            rich_help_panel=VOICE,
        ),
    ] = None,
    voice_pool: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of voices; each row that names none gets one by hash of its id.",
            rich_help_panel=VOICE,
        ),
    ] = None,
    audio_format: options.Format = None,
    subtype: options.Subtype = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="flat (wavs/ID.wav) or hashed (wavs/XX/ID.wav, for above 100,000 rows).",
            show_default="flat",
            rich_help_panel=FILES,
        ),
    ] = None,
) -> None:
    """Speak every row of MANIFEST into DIR.

    What is done already is skipped, so the same command goes on after an interruption.
    """
    settings = options.settings_from(
        model=model,
        device=device,
        max_batch_size=options.batch_size(max_batch_size),
        deterministic=deterministic,
        cuda_graph=not no_cuda_graph,
        overwrite=overwrite,
        retry_failed=retry_failed,
        limit=limit,
        time_limit_s=options.seconds(time_limit),
        plan_window=plan_window,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        seed=seed,
        takes=takes,
        reference=options.reference_from(ref, ref_text, voice),
        voice_pool=voice_pool,
        audio_format=audio_format,
        subtype=subtype,
        layout=layout,
    )
    from fishcli.cli.run import check_voice, run  # noqa: PLC0415 - loads torch
    from fishcli.cli.run import dry_run as show_plan  # noqa: PLC0415

    if settings.reference is not None:
        check_voice(settings.reference)
    act = show_plan if dry_run else run
    raise typer.Exit(act(manifest, out, settings))
