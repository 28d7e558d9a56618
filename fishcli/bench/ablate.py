"""What one optimisation is worth: the same work without and with it, in one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

Figures = Mapping[str, float]  # name with its unit → value; lower is better in all of them
Measure = Callable[[], Figures]
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Ablation:
    """One optimisation: ``measured`` is the work, ``off`` and ``on`` are medians of its figures."""

    name: str
    measured: str
    off: Figures
    on: Figures

    def __post_init__(self) -> None:
        assert self.off.keys() == self.on.keys(), (self.off, self.on)


def compare(
    name: str, measured: str, off: Measure, on: Measure, repeats: int = REPEATS
) -> Ablation:
    """Measure ``off`` and ``on`` in turn."""
    return Ablation(name, measured, *alternate(off, on, repeats))


def alternate(off: Measure, on: Measure, repeats: int) -> tuple[Figures, Figures]:
    """Medians of ``repeats`` calls of each, after a warm-up of both.

    They take turns, so that a machine that grows slower meanwhile slows both.
    """
    off()
    on()
    measured = [(off(), on()) for _ in range(repeats)]
    return _medians([pair[0] for pair in measured]), _medians([pair[1] for pair in measured])


def _medians(figures: list[Figures]) -> Figures:
    return {name: median(each[name] for each in figures) for name in figures[0]}
