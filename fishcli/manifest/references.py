"""Finds the voice a row names: a clip with its transcript, a voice file, or one of a pool."""

from __future__ import annotations

import re
import stat
from functools import lru_cache
from pathlib import Path

from fishcli.errors import UsageError
from fishcli.manifest.text import collapse, shown, text_problem
from fishcli.records import Reference

VOICE_SUFFIX = ".voice"
AUDIO_SUFFIXES = frozenset((".wav", ".flac", ".mp3", ".ogg", ".opus", ".aif", ".aiff", ".aifc"))
SIDECARS = (".lab", ".txt")  # transcripts beside a clip, the first found counts
SIDECAR_BYTES = 65536
CACHED = 65536  # distinct references remembered at a time

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class References:
    """Resolves paths against ``folder`` and looks at each file once (for one pass)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.audio = lru_cache(CACHED)(self._audio)
        self.voice = lru_cache(CACHED)(self._voice)

    def _audio(self, path: str, text: str | None) -> Reference | str:
        """The reference of a clip, or what is wrong with it (to follow the field's name)."""
        problem = _file_problem(path, self._folder / path)
        if problem:
            return problem
        clip = self._folder / path
        if text is None:
            text = sidecar_text(clip)
        if text is None:
            return (
                f"is {shown(path)}, which has no transcript: give it as ref_text, put it in "
                f"{clip.stem}.lab or {clip.stem}.txt beside the clip, or make a voice of it "
                "with `fishcli clone --save-voice` and name that as voice"
            )
        problem = text_problem(text)
        if problem:
            return f"is {shown(path)}, whose transcript is wrong: {problem}"
        return Reference("audio", clip, text)

    def _voice(self, path: str) -> Reference | str:
        """The reference of a voice file, or what is wrong with it."""
        place = self._folder / path
        return _file_problem(path, place) or Reference("voice", place)


def sidecar_text(clip: Path) -> str | None:
    """The transcript in ``clip``'s ``.lab`` or ``.txt``, white space collapsed; None if absent.

    One that is empty, too large for a transcript or not text counts as absent.
    """
    for suffix in SIDECARS:
        try:
            with clip.with_suffix(suffix).open("rb") as file:
                data = file.read(SIDECAR_BYTES + 1)
            text = collapse(data.decode("utf-8-sig"))
        except (OSError, ValueError):
            continue
        if text and len(data) <= SIDECAR_BYTES:
            return text
    return None


def read_voice_pool(folder: Path) -> tuple[Reference, ...]:
    """The voices of ``--voice-pool``: voice files, and clips with a transcript beside them.

    Sorted by name, so that the same folder gives every row the same voice again.
    Raises :class:`UsageError` if the folder is missing or holds none.
    """
    try:
        files = sorted(folder.absolute().iterdir())
    except OSError as error:
        raise UsageError(f"voice pool {folder}: {error.strerror}") from error
    pool = []
    for file in files:
        if file.suffix.lower() == VOICE_SUFFIX:
            pool.append(Reference("voice", file))
        elif file.suffix.lower() in AUDIO_SUFFIXES:
            text = sidecar_text(file)
            if text and not text_problem(text):
                pool.append(Reference("audio", file, text))
    if not pool:
        raise UsageError(
            f"voice pool {folder} holds no *{VOICE_SUFFIX} file and no clip with a .lab or .txt"
        )
    return tuple(pool)


def _file_problem(path: str, place: Path) -> str | None:
    if _URL.match(path):
        return f"is {shown(path)}: URLs are not allowed, download the file and give its path"
    try:
        found = place.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = "does not exist" if isinstance(error, FileNotFoundError) else str(error)
        return f"is {shown(path)}: {why} ({place})"
    if not stat.S_ISREG(found.st_mode):
        return f"is {shown(path)}: not a file ({place})"
    if found.st_size == 0:
        return f"is {shown(path)}: the file is empty ({place})"
    return None
