"""Speech to text for clips without a transcript, where faster-whisper is installed.

A model comes from a folder, from ``FISHCLI_ASR_MODEL``, or from the local cache; nothing
is ever downloaded here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fishcli.errors import UsageError

MODEL_VARIABLE = "FISHCLI_ASR_MODEL"
INSTALL_HINT = "pip install faster-whisper"
# The models faster-whisper loads by name, the best first.
SIZES = ("large-v3", "large-v2", "medium", "small", "base", "tiny")
CACHED_MODELS = tuple(
    f"Systran/faster-whisper-{size}{suffix}" for size in SIZES for suffix in ("", ".en")
)


class AsrUnavailableError(UsageError):
    """No speech recognition here; ``str(error)`` says why and what would help."""


class Transcriber:
    """A loaded recogniser. Made by :func:`load_transcriber`."""

    def __init__(self, model: Any, name: str) -> None:
        self._model = model
        self.name = name

    def transcribe(self, clip: Path) -> str:
        """What is said in ``clip``, white space collapsed; empty if nothing is."""
        segments, _info = self._model.transcribe(str(clip), beam_size=5)
        return " ".join(" ".join(segment.text for segment in segments).split())


def load_transcriber(model: str | None = None) -> Transcriber:
    """The recogniser in the folder ``model``, else of the environment, else of the cache.

    Raises :class:`AsrUnavailableError` if faster-whisper or a model is missing.
    """
    try:
        from faster_whisper import WhisperModel  # noqa: PLC0415 - optional and heavy
    except ImportError:
        raise AsrUnavailableError(f"speech recognition is not installed: {INSTALL_HINT}") from None
    name = find_model(model)
    try:
        return Transcriber(WhisperModel(name, local_files_only=True), name)
    except (OSError, RuntimeError, ValueError) as error:
        first_line = str(error).split("\n", 1)[0]
        raise AsrUnavailableError(f"the ASR model {name} cannot be loaded: {first_line}") from error


def find_model(given: str | None = None) -> str:
    """Folder of the model to use; raises :class:`AsrUnavailableError` if there is none."""
    wanted = given or os.environ.get(MODEL_VARIABLE)
    if wanted:
        if not Path(wanted).is_dir():
            raise AsrUnavailableError(f"the ASR model {wanted} is not a folder")
        return wanted
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - slow to import

    for repository in CACHED_MODELS:
        found = try_to_load_from_cache(repository, "model.bin")
        if isinstance(found, str):
            return str(Path(found).parent)
    raise AsrUnavailableError(
        f"no ASR model is on disk: name a folder with --asr-model or {MODEL_VARIABLE}"
    )
