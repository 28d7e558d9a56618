"""Plots of the report's page: inline SVG whose colours come from the page's style sheet.

Counts are kept by bins of equal ratio, so memory depends on the range of the values and
not on how many there are, and three rows look as sensible as three million.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

PER_DECADE = 100  # bins kept: 2.3 % wide
PIXELS_A_BAR = 9  # at least; a bar is made of neighbouring bins
FEWEST_BARS = 12
WIDTH, HEIGHT = 360, 140  # of the plotting area
LEFT, TOP, BOTTOM, RIGHT = 44, 8, 22, 8  # margins around it, for labels


def number(value: float) -> str:
    """``value`` for a reader: whole from 1000 on, else three digits."""
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis of ``bars`` bars, each ``step`` bins wide, from bin ``low`` on."""

    low: int
    step: int
    bars: int
    pixels: float

    @classmethod
    def over(cls, bins: Iterable[int], pixels: float) -> Axis:
        """The axis that shows every one of ``bins`` (at least one), with air around few."""
        known = sorted(set(bins))
        low, high = known[0], known[-1]
        step = (high - low) // int(pixels / PIXELS_A_BAR) + 1
        bars = (high - low) // step + 1
        air = max(0, FEWEST_BARS - bars)
        return cls(low - step * (air // 2), step, bars + air, pixels)

    @property
    def bar_pixels(self) -> float:
        """Width of a bar."""
        return self.pixels / self.bars

    def bar(self, bin_: int) -> int:
        """The bar that ``bin_`` belongs to, from 0."""
        return (bin_ - self.low) // self.step

    def edge(self, bar: float) -> float:
        """The value at which ``bar`` begins."""
        return float(10 ** ((self.low + bar * self.step) / PER_DECADE))

    def place(self, value: float) -> float:
        """Pixels from the axis' beginning to ``value``."""
        return (math.log10(value) * PER_DECADE - self.low) / self.step * self.bar_pixels

    def ticks(self) -> list[tuple[float, str]]:
        """(pixels, label) at the beginning, the middle and the end."""
        shares = (0.0, 0.5, 1.0)
        return [(s * self.pixels, number(self.edge(s * self.bars))) for s in shares]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often values come; what is not above zero has no place on a logarithmic axis."""

    counts: Counter[int] = field(default_factory=Counter)  # by bin

    def add(self, value: float | None) -> None:
        """Count one value; None was not measured."""
        if value is not None and value > 0:
            self.counts[math.floor(math.log10(value) * PER_DECADE)] += 1

    def svg(self, unit: str) -> str:
        """The bars, or nothing without a value. ``unit`` is text, not HTML."""
        if not self.counts:
            return ""
        axis = Axis.over(self.counts, WIDTH)
        bars: Counter[int] = Counter()
        for bin_, count in self.counts.items():
            bars[axis.bar(bin_)] += count
        most = max(bars.values())
        parts = [_text(-6, 8, f"{most:,}", "end"), _line(0, HEIGHT, WIDTH, HEIGHT)]
        for bar, count in sorted(bars.items()):
            height = max(1.0, HEIGHT * count / most)
            span = f"{number(axis.edge(bar))} to {number(axis.edge(bar + 1))}{unit}"
            told = f"{span}: {count:,} rows"
            width = axis.bar_pixels - 1
            parts.append(
                _box(bar * axis.bar_pixels, HEIGHT - height, width, height, 'class="bar"', told)
            )
        return _svg([*parts, *_below(axis, unit)])


@dataclass(frozen=True, slots=True)
class Density:
    """How often pairs of values come."""

    counts: Counter[tuple[int, int]] = field(default_factory=Counter)  # by bins of x and y

    def add(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        """Count pairs. ``x``, ``y``: (rows,); pairs with a value not above zero are left out."""
        seen = (x > 0) & (y > 0)
        pairs = np.log10(np.stack([x[seen], y[seen]], axis=1)) * PER_DECADE  # (rows, 2)
        bins, counts = np.unique(np.floor(pairs).astype(np.int64), axis=0, return_counts=True)
        for (column, row), count in zip(bins.tolist(), counts.tolist(), strict=True):
            self.counts[column, row] += count

    def svg(self, unit_x: str, unit_y: str, expected: Callable[[float], float]) -> str:
        """Darker where more rows lie, with the line y = ``expected(x)``; nothing without a pair."""
        if not self.counts:
            return ""
        across = Axis.over((x for x, _ in self.counts), WIDTH)
        line = [(at, expected(across.edge(at))) for at in range(across.bars + 1)]
        line_bins = (math.floor(math.log10(y) * PER_DECADE) for _, y in line)
        up = Axis.over([*(y for _, y in self.counts), *line_bins], HEIGHT)
        cells: Counter[tuple[int, int]] = Counter()
        for (x, y), count in self.counts.items():
            cells[across.bar(x), up.bar(y)] += count
        most = max(cells.values())
        parts = [_line(0, HEIGHT, WIDTH, HEIGHT)]
        for (column, row), count in sorted(cells.items()):
            shade = 0.25 + 0.75 * math.log1p(count) / math.log1p(most)
            left, top = column * across.bar_pixels, HEIGHT - (row + 1) * up.bar_pixels
            place = f"{number(across.edge(column))}{unit_x}, {number(up.edge(row))}{unit_y}"
            told = f"{place}: {count:,} rows"
            look = f'class="bar" opacity="{shade:.2f}"'
            parts.append(_box(left, top, across.bar_pixels - 1, up.bar_pixels - 1, look, told))
        points = " ".join(
            f"{a * across.bar_pixels:.1f},{HEIGHT - up.place(y):.1f}" for a, y in line
        )
        parts.append(f'<polyline class="expected" points="{points}"/>')
        parts += [_text(-6, HEIGHT - at + 4, label, "end") for at, label in up.ticks()]
        return _svg([*parts, *_below(across, unit_x)])


def _svg(parts: list[str]) -> str:
    size = f"{-LEFT} {-TOP} {LEFT + WIDTH + RIGHT} {TOP + HEIGHT + BOTTOM}"
    return f'<svg viewBox="{size}" role="img">{"".join(parts)}</svg>'


def _below(axis: Axis, unit: str) -> list[str]:
    anchors = ("start", "middle", "end")
    ticks = zip(axis.ticks(), anchors, strict=True)
    return [_text(at, HEIGHT + 16, label + unit, anchor) for (at, label), anchor in ticks]


def _box(left: float, top: float, width: float, height: float, look: str, told: str) -> str:
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f"<rect {look} {place}><title>{told}</title></rect>"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="axis" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
