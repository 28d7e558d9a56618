"""Flags that several commands share, and how their values become settings.

A flag that is not given is None here and takes the default of ``configs/synth.json``; the
default that ``--help`` shows is text, and a test compares the two.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fishcli.errors import UsageError
from fishcli.records import Reference
from fishcli.settings import SynthSettings

SAMPLING, VOICE, FILES, RUN = "Sampling", "Voice", "Files", "Run"

Model = Annotated[
    str | None,
    typer.Option(
        help="auto, mini, s2-pro, random:s2-pro, random:mini, a checkpoint folder, or a hub id. "
        "auto takes s2-pro if it is on disk and fits a CUDA device, else mini; "
        "it never downloads.",
        show_default="auto",
        rich_help_panel=RUN,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="auto, cpu, cuda or cuda:N.", show_default="auto", rich_help_panel=RUN),
]
MaxBatchSize = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        help="Rows generated at once; auto chooses from free memory.",
        show_default="auto",
        rich_help_panel=RUN,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Do every row again, and allow another model or other settings than the folder's.",
        rich_help_panel=RUN,
    ),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="A row's file is the same bytes whatever its batch, order or resume; slower.",
        rich_help_panel=RUN,
    ),
]
NoCudaGraph = Annotated[
    bool,
    typer.Option(
        "--no-cuda-graph",
        help="On a GPU: launch every kernel from the host instead of replaying captured graphs.",
        rich_help_panel=RUN,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="0 to 5; 0 takes the best token.", show_default="0.8", rich_help_panel=SAMPLING
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Above 0, up to 1; 1 switches the cut off.",
        show_default="0.8",
        rich_help_panel=SAMPLING,
    ),
]
TopK = Annotated[
    int | None, typer.Option(help="1 to 4096.", show_default="30", rich_help_panel=SAMPLING)
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        help="Most frames of a row (21.5 a second); a row's text may allow fewer.",
        show_default="4096",
        rich_help_panel=SAMPLING,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Seed of the run; a row without one gets hash(seed, id).",
        show_default="0",
        rich_help_panel=SAMPLING,
    ),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="wav or flac.", show_default="wav", rich_help_panel=FILES),
]
Subtype = Annotated[
    str | None,
    typer.Option(
        help="PCM_16 or PCM_24; for wav also PCM_32 or FLOAT.",
        show_default="PCM_16",
        rich_help_panel=FILES,
    ),
]


def settings_from(**flags: Any) -> SynthSettings:
    """The defaults with the given ``flags`` in place; None means not given.

    Names are those of :class:`SynthSettings`, and ``temperature``, ``top_p``, ``top_k``.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    defaults = SynthSettings.defaults()
    sampling = {
        name: given.pop(name) for name in ("temperature", "top_p", "top_k") if name in given
    }
    return replace(defaults, sampling=replace(defaults.sampling, **sampling), **given)


def batch_size(text: str | None) -> int | None:
    """``--max-batch-size``: a number, or None for auto."""
    if text is None or text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"max-batch-size is {text!r}: allowed is a number or auto") from None


def seconds(text: str | None) -> float | None:
    """``--time-limit``: seconds, or hours, minutes and seconds as 1h30m or 01:30:00."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    clock = re.fullmatch(r"(?:(\d+):)?(\d+):(\d+)", text)
    units = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    parts = clock or units
    if not parts or not any(parts.groups()):
        raise UsageError(f"time-limit is {text!r}: allowed is 5400, 90m, 1h30m or 01:30:00")
    hours, minutes, rest = (int(part or 0) for part in parts.groups())
    return float(3600 * hours + 60 * minutes + rest)


def reference_from(ref: Path | None, ref_text: str | None, voice: Path | None) -> Reference | None:
    """The voice that ``--ref`` with ``--ref-text`` (or a sidecar), or ``--voice``, names.

    Raises :class:`UsageError` for a missing file, a missing transcript, or both kinds.
    """
    if voice is not None:
        if ref is not None or ref_text is not None:
            raise UsageError("--voice excludes --ref and --ref-text")
        return Reference("voice", existing("--voice", voice))
    if ref is None:
        if ref_text is not None:
            raise UsageError("--ref-text has no --ref")
        return None
    clip = existing("--ref", ref)
    text = transcript(clip, ref_text)
    if text is None:
        raise UsageError(
            f"{ref} has no transcript: give --ref-text, or put it in {clip.stem}.lab or "
            f"{clip.stem}.txt beside the clip"
        )
    return Reference("audio", clip, text)


def transcript(clip: Path, given: str | None) -> str | None:
    """``--ref-text``, or the text beside the clip, white space collapsed; None without either.

    Raises :class:`UsageError` for a given text that cannot be spoken.
    """
    from fishcli.manifest import sidecar_text  # noqa: PLC0415 - loads pyarrow
    from fishcli.manifest.text import collapse, text_problem  # noqa: PLC0415

    text = sidecar_text(clip) if given is None else collapse(given)
    problem = None if text is None else text_problem(text)
    if problem:
        raise UsageError(f"the transcript of {clip} is wrong: {problem}")
    return text


def existing(flag: str, path: Path) -> Path:
    """``path`` made absolute; :class:`UsageError` naming ``flag`` if it is no file."""
    if not path.is_file():
        raise UsageError(f"{flag} {path}: no such file")
    return path.absolute()
