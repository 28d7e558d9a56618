"""The rows of a bench: unique texts with a realistic spread of lengths, from a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile

from fishcli.estimate import FRAME_RATE, estimate_frames, frame_budget
from fishcli.records import Reference, Row, Sampling

ReferenceKind = Literal["none", "shared", "unique"]

WORDS = (  # noqa: SIM905 - a hundred short strings in brackets would read worse
    "a about after again all and around at because before bright carry city clear close day "
    "door early evening every fire first for from garden glass grey hand heavy high hill house "
    "in into is it kettle kitchen ladder late letter light listen little long look market "
    "morning mountain near never night of old on only open other over paper people quiet rain "
    "read river road room round sea seven she slow small snow some song south spring stone "
    "story street summer table talk that the them there they thirty this time to train tree "
    "two under very voice wait walk warm was water way we were white window winter with work"
).split()
MEDIAN_BYTES, SPREAD = 85.0, 0.5  # of a text, lognormal
SHORTEST, LONGEST = 20, 320  # bytes
FRAMES_SPREAD = 0.25  # lognormal factor between estimate and drawn frames
REFERENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class BenchRows:
    """Rows, and for random weights the frames each must come out with."""

    rows: list[Row]
    frames: dict[str, int]

    @property
    def longest(self) -> int:
        """Frames of the longest row."""
        return max(self.frames.values())

    def largest_budget(self, *, exact: bool) -> int:
        """Frames that a row may need room for: its drawn ones if ``exact``, else its budget."""
        if exact:
            return self.longest
        return max(frame_budget(row.text, row.max_new_tokens) for row in self.rows)


def make_rows(
    count: int, longest: int, reference: ReferenceKind, folder: Path, seed: int = 0
) -> BenchRows:
    """``count`` rows whose texts have at most ``longest`` bytes; clips go into ``folder``.

    Frames are the planner's own estimate times a lognormal(0.25) factor, which the planner
    does not see.
    """
    rng = np.random.default_rng(seed)
    sizes = np.clip(rng.lognormal(np.log(MEDIAN_BYTES), SPREAD, count), SHORTEST, longest)
    factors = rng.lognormal(0.0, FRAMES_SPREAD, count)
    clips = _clips(count, reference, folder, rng)
    rows, frames = [], {}
    for index in range(count):
        text = _text(index, int(sizes[index]), rng)
        row = Row(
            index=index,
            line=index + 1,
            id=f"bench-{index:05d}",
            text=text,
            reference=clips[index] if clips else None,
            sampling=Sampling(),
            max_new_tokens=4096,
            seed=seed + index,
        )
        rows.append(row)
        frames[row.id] = max(1, round(estimate_frames(text) * factors[index]))
    return BenchRows(rows, frames)


def _text(index: int, size: int, rng: np.random.Generator) -> str:
    words = [f"Number {index}."]
    while len(" ".join(words)) < size:
        words.append(str(rng.choice(WORDS)))
    return " ".join(words)[:size].rstrip()


def _clips(
    count: int, kind: ReferenceKind, folder: Path, rng: np.random.Generator
) -> list[Reference]:
    """A reference a row: ten seconds of a wandering tone in noise (speed only)."""
    if kind == "none":
        return []
    made = []
    for index in range(count if kind == "unique" else 1):
        seconds = np.arange(int(REFERENCE_S * 44100)) / 44100
        pitch = 120 + 60 * rng.random() + 20 * np.sin(2 * np.pi * seconds)
        tone = 0.3 * np.sin(2 * np.pi * np.cumsum(pitch) / 44100)
        path = folder / f"reference-{index}.wav"
        soundfile.write(path, tone + 0.01 * rng.standard_normal(len(tone)), 44100)
        text = "This clip stands for ten seconds of speech, about thirty words in all. " * 2
        made.append(Reference("audio", path, text.strip()))
    return made if kind == "unique" else made * count


def longest_text(max_seq_len: int, overhead: int) -> int:
    """Bytes of text that surely fit a context: every byte a token, frames four sigma long."""
    frames_per_byte = float(np.exp(4 * FRAMES_SPREAD)) * FRAME_RATE / 15
    margin = overhead + int(np.exp(4 * FRAMES_SPREAD) * FRAME_RATE / 4)
    return max(SHORTEST, min(LONGEST, int((max_seq_len - margin) / (1 + frames_per_byte))))
