"""The records that travel between the steps of the house, and who fills each field.

A row's way: ``manifest`` yields :class:`Row`; ``voices`` and ``prompt`` turn it into a
:class:`Request`; ``engine`` answers with :class:`FinishedCodes`; the decoder thread
turns those into PCM; ``writer`` appends a ``ledger.Record``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fishcli.errors import UsageError

if TYPE_CHECKING:  # records must stay importable without torch: planning never loads it
    from torch import Tensor

FinishReason = Literal["stop", "length"]

MAX_NEW_TOKENS_LIMIT = 32768
TOP_K_LIMIT = 4096
SEED_LIMIT = 2**63 - 1
TAKES_LIMIT = 1000


def check_range(
    name: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    """Raise :class:`UsageError` naming field, value and allowed range."""
    below = value <= low if open_low else value < low
    if below or not value <= high:  # `not <=` also catches NaN
        bracket = "(" if open_low else "["
        raise UsageError(f"{name} is {value!r}: allowed is {bracket}{low}, {high}]")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; one set for semantic and residual tokens (S2 default 0.8/0.8/30)."""

    temperature: float = 0.8
    top_p: float = 0.8
    top_k: int = 30

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0.0, 5.0)
        check_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        check_range("top_k", self.top_k, 1, TOP_K_LIMIT)


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a voice comes from.

    ``kind`` "audio": ``path`` is a sound file and ``text`` its transcript.
    ``kind`` "voice": ``path`` is a file written by ``clone --save-voice``, which holds
    codes and transcript itself; ``text`` is None.
    """

    kind: Literal["audio", "voice"]
    path: Path
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One valid row of a manifest, filled by ``manifest``. Nothing later changes it."""

    index: int  # place in the manifest, takes counted, from 0
    line: int  # line (text formats) or row number (Parquet) in the manifest, from 1
    id: str  # also the stem of the file
    text: str  # white space collapsed, control tokens refused
    reference: Reference | None
    sampling: Sampling
    max_new_tokens: int  # upper bound of frames
    seed: int  # 0 … SEED_LIMIT
    extra: Mapping[str, Any] = field(default_factory=dict)  # unknown columns, carried through
    warnings: tuple[str, ...] = ()  # e.g. markdown or bare URLs in the text


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be done, with every reason found; filled by ``manifest``."""

    index: int
    line: int
    id: str  # the row's own id if it has a usable one, else its derived id
    reason: str  # the first problem's short word
    problems: tuple[str, ...]  # "line 7: top_k is 0: allowed is [1, 4096]"
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What the engine needs to generate one row; filled by the pipeline's preparing thread."""

    id: str
    prompt: Tensor  # (1 + codebooks, length) int32, on the host
    sampling: Sampling
    seed: int
    max_frames: int  # budget in frames, ≥ 1
    ignore_stop: bool = False  # benches with random weights generate exactly max_frames
    expected_frames: int = 0  # the planner's estimate, for admission; 0: max_frames
    shared_columns: int = 0  # leading columns that all rows of this voice have in common


@dataclass(frozen=True, slots=True, eq=False)
class FinishedCodes:
    """A row the engine has finished, handed to the decoder thread.

    ``codes`` stays on the engine's device: (codebooks, frames) int32, frames may be 0.
    """

    id: str
    codes: Tensor
    finish_reason: FinishReason
