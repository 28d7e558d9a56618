"""Plots: every value is drawn once, inside the plotting area, whatever the range."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fishcli.plots import HEIGHT, WIDTH, Axis, Density, Histogram, number

POSITIVE = st.floats(1e-6, 1e6)


def drawn(svg: str) -> list[tuple[dict[str, float], int]]:
    """(place, rows) of every box with a count."""
    found = []
    for box in ElementTree.fromstring(svg).iter("rect"):
        told = re.fullmatch(r".*: ([\d,]+) rows", box.findtext("title") or "")
        assert told
        place = {key: float(box.attrib[key]) for key in ("x", "y", "width", "height")}
        found.append((place, int(told[1].replace(",", ""))))
    return found


def assert_inside(place: dict[str, float]) -> None:
    assert place["width"] > 0
    assert place["height"] > 0
    assert 0 <= place["x"] <= WIDTH - place["width"] + 0.1
    assert -0.1 <= place["y"] <= HEIGHT - place["height"] + 0.1


@given(st.lists(POSITIVE, min_size=1))
def test_a_histogram_draws_every_value_once(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    boxes = drawn(histogram.svg(" s"))
    assert sum(count for _, count in boxes) == len(values)
    for place, _ in boxes:
        assert_inside(place)


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1))
def test_a_density_draws_every_pair_once(pairs: list[tuple[float, float]]) -> None:
    density = Density()
    x, y = np.array(pairs).T
    density.add(x, y)
    boxes = drawn(density.svg(" B", " s", lambda size: size / 15))
    assert sum(count for _, count in boxes) == len(pairs)
    for place, _ in boxes:
        assert_inside(place)


def test_what_was_not_measured_is_not_drawn() -> None:
    histogram = Histogram()
    for value in (None, 0.0, -1.0):
        histogram.add(value)
    assert histogram.svg("") == ""
    density = Density()
    density.add(np.array([0.0, 5.0]), np.array([1.0, 0.0]))
    assert density.svg("", "", float) == ""


def test_memory_depends_on_the_range_of_values_only() -> None:
    histogram, density = Histogram(), Density()
    values = np.geomspace(0.1, 10, 100_000)
    for value in values:
        histogram.add(float(value))
    for _ in range(3):
        density.add(values, values)
    assert len(histogram.counts) <= 202
    assert len(density.counts) <= 202


@given(st.sets(st.integers(-600, 600), min_size=1))
def test_an_axis_holds_all_its_bins(bins: set[int]) -> None:
    axis = Axis.over(bins, WIDTH)
    assert all(0 <= axis.bar(bin_) < axis.bars for bin_ in bins)


def test_a_taller_bar_stands_for_more_rows() -> None:
    histogram = Histogram()
    for value in (1.0, 10.0, 10.0):
        histogram.add(value)
    (low, _), (high, _) = sorted(drawn(histogram.svg("")), key=lambda box: box[0]["x"])
    assert high["height"] == pytest.approx(2 * low["height"], rel=0.01)


def test_an_axis_says_where_its_values_lie() -> None:
    axis = Axis.over([0, 200], WIDTH)  # 1 to 100
    assert axis.place(1.0) == pytest.approx(0)
    assert axis.edge(axis.bars) == pytest.approx(100, rel=0.2)
    assert axis.place(math.sqrt(axis.edge(axis.bars))) == pytest.approx(WIDTH / 2)


@pytest.mark.parametrize(
    ("value", "shown"), [(3, "3"), (0.012345, "0.0123"), (1234.5, "1,234"), (10**6, "1,000,000")]
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown
