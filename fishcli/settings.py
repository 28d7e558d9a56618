"""The settings of a synthesis run: defaults from ``configs/synth.json``, checked once.

Nothing here loads torch: planning and ``--help`` read settings too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from fishcli.errors import UsageError
from fishcli.records import (
    MAX_NEW_TOKENS_LIMIT,
    SEED_LIMIT,
    TAKES_LIMIT,
    Reference,
    Sampling,
    check_range,
)

AudioFormat = Literal["wav", "flac"]
Layout = Literal["flat", "hashed"]

# What libsndfile writes in each format; the first is the default of ``--format``.
SUBTYPES: Mapping[str, tuple[str, ...]] = {
    "wav": ("PCM_16", "PCM_24", "PCM_32", "FLOAT"),
    "flac": ("PCM_16", "PCM_24"),
}

MAX_BATCH_SIZE_LIMIT = 1024
PLAN_WINDOW_LIMIT = 2**20


@dataclass(frozen=True, slots=True)
class SynthSettings:
    """Everything that decides how a run behaves, except what its rows say themselves."""

    model: str  # auto | mini | random:… | folder | hub id
    device: str  # auto | cpu | cuda | cuda:N
    sampling: Sampling  # for rows that name no value of their own
    max_new_tokens: int  # frames, upper bound of every row
    seed: int  # a row without a seed gets hash(seed, id)
    takes: int  # seeds per text
    audio_format: AudioFormat
    subtype: str  # libsndfile's name of the sample format
    layout: Layout
    deterministic: bool
    max_batch_size: int | None  # slots of the engine; None: chosen by the device
    plan_window: int  # rows ordered together
    cuda_graph: bool = True  # on a GPU: frames and prompts captured, not launched one by one
    reference: Reference | None = None  # for rows that name no voice
    voice_pool: Path | None = None  # folder; a voice for each row by hash of its id
    retry_failed: bool = False
    overwrite: bool = False
    limit: int | None = None  # rows
    time_limit_s: float | None = None

    def __post_init__(self) -> None:
        """Raise :class:`UsageError` naming field, value and allowed range."""
        if not self.model:
            raise UsageError("model is empty: name one, or say auto")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise UsageError(f"device is {self.device!r}: allowed is auto, cpu, cuda or cuda:N")
        check_range("max_new_tokens", self.max_new_tokens, 1, MAX_NEW_TOKENS_LIMIT)
        check_range("seed", self.seed, 0, SEED_LIMIT)
        check_range("takes", self.takes, 1, TAKES_LIMIT)
        check_range("plan_window", self.plan_window, 1, PLAN_WINDOW_LIMIT)
        if self.max_batch_size is not None:
            check_range("max_batch_size", self.max_batch_size, 1, MAX_BATCH_SIZE_LIMIT)
        if self.limit is not None:
            check_range("limit", self.limit, 1, float("inf"))
        if self.time_limit_s is not None:
            check_range("time_limit", self.time_limit_s, 0, float("inf"), open_low=True)
        _check_choice("format", self.audio_format, tuple(SUBTYPES))
        _check_choice("subtype", self.subtype, SUBTYPES[self.audio_format])
        _check_choice("layout", self.layout, ("flat", "hashed"))
        if self.reference is not None and self.voice_pool is not None:
            raise UsageError("a reference and a voice pool were given: use one of them")
        if self.retry_failed and self.overwrite:
            raise UsageError("retry-failed and overwrite were given: use one of them")

    @classmethod
    def defaults(cls) -> SynthSettings:
        """The settings of ``configs/synth.json``; an unknown key or a wrong type is refused."""
        return cls.from_json(config_text("synth.json"), "configs/synth.json")

    @classmethod
    def from_json(cls, text: str, where: str) -> SynthSettings:
        """Read settings as JSON; ``where`` names their origin in errors."""
        try:
            values = msgspec.json.decode(text, type=dict[str, Any])
            _refuse_unknown(values, cls, where)
            _refuse_unknown(values.get("sampling", {}), Sampling, f"{where}: sampling")
            return msgspec.convert(values, cls)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{where}: {error}") from None

    def run_wide(self) -> dict[str, Any]:
        """What ``run.json`` records: all that changes audio or the layout of the folder.

        A later run into the same folder must agree with it. The model's identity is added
        by whoever resolved the model. Voices are recorded by content, so that a moved
        clip is the same voice and an exchanged one is not.
        """
        return {
            **asdict(self.sampling),
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "takes": self.takes,
            "reference": None if self.reference is None else _reference_content(self.reference),
            "voice_pool": None if self.voice_pool is None else _pool_content(self.voice_pool),
            "format": self.audio_format,
            "subtype": self.subtype,
            "layout": self.layout,
            "deterministic": self.deterministic,
        }


def config_text(name: str) -> str:
    """The text of a file in ``configs/``."""
    return (resources.files("fishcli") / "configs" / name).read_text(encoding="utf-8")


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} is {value!r}: allowed is {' or '.join(allowed)}")


def _refuse_unknown(values: Mapping[str, Any], target: type, where: str) -> None:
    unknown = sorted(set(values) - {field.name for field in fields(target)})
    if unknown:
        raise UsageError(f"{where}: unknown key {', '.join(map(repr, unknown))}")


def _reference_content(reference: Reference) -> dict[str, str | None]:
    try:
        with reference.path.open("rb") as file:
            digest = hashlib.file_digest(file, _digest).hexdigest()
    except OSError as error:
        raise UsageError(f"reference {reference.path} cannot be read: {error.strerror}") from None
    return {"kind": reference.kind, "content": digest, "text": reference.text}


def _pool_content(folder: Path) -> str:
    """Digest of the names in the pool: they decide which voice an id gets."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise UsageError(f"voice pool {folder} cannot be read: {error.strerror}") from None
    return hashlib.blake2b("\0".join(names).encode(), digest_size=16).hexdigest()


def _digest() -> Any:
    return hashlib.blake2b(digest_size=16)
