"""Ids: usable, derived, folded; seeds from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fishcli.manifest.ids import DerivedIds, fold, id_problem, seed_of


@pytest.mark.parametrize(
    "value",
    [
        "",
        "../x",
        "/abs",
        "a/b",
        "a\\b",
        "a\0b",
        "a\nb",
        "a\x7fb",
        ".hidden",
        "..",
        "dot.",
        "space ",
        "CON",
        "nul",
        "Com1.part",
        "lpt³",
        "x" * 201,
        "é" * 101,
        "lone\ud800",
    ],
)
def test_ids_that_are_no_file_name_everywhere_are_refused(value: str) -> None:
    assert id_problem(value) is not None


@pytest.mark.parametrize(
    "value", ["a", "row-1", "x" * 200, "é" * 100, "中文 1", "a.b.c", "console", "-x", "00"]
)
def test_ordinary_ids_are_kept(value: str) -> None:
    assert id_problem(value) is None


@given(st.text(max_size=20))
def test_an_accepted_id_is_one_plain_component_of_a_path(value: str) -> None:
    if id_problem(value) is None:
        assert value.encode()
        assert value not in {"", ".", ".."}
        assert not set(value) & set("/\\\0\n\r")


def test_folding_is_blind_to_case_and_unicode_form() -> None:
    assert fold("Straße") == fold("STRASSE")
    assert fold("caf\u00e9") == fold("CAFE\u0301")
    assert fold("a") != fold("b")


def test_seeds_are_stable_spread_and_in_range() -> None:
    assert seed_of(0, "a") == 787122455340873193
    assert len({seed_of(run, f"{n}") for run in range(3) for n in range(100)}) == 300
    assert all(0 <= seed_of(0, f"{n}") < 2**63 for n in range(100))


def test_a_derived_id_is_of_the_content_and_repeats_are_numbered() -> None:
    ids = DerivedIds()
    first = ids.of({"text": "a", "top_k": 3})
    assert len(first) == 16
    assert int(first, 16) >= 0
    assert ids.of({"text": "b"}) != first
    assert ids.of({"top_k": 3, "text": "a"}) == f"{first}-2"
    assert ids.of({"text": "a", "top_k": 3}) == f"{first}-3"
    assert DerivedIds().of({"text": "a", "top_k": 3}) == first
