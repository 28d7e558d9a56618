"""Rules for texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fishcli.manifest.text import collapse, shown, text_problem, text_warnings


def test_white_space_becomes_the_clean_text() -> None:
    assert collapse("  Hello,\n\n\tbig   world\u3000! \r\n") == "Hello, big world !"


@given(st.text())
def test_collapsing_keeps_every_other_character(text: str) -> None:
    assert collapse(text).replace(" ", "") == "".join(text.split())
    assert collapse(collapse(text)) == collapse(text)


@pytest.mark.parametrize(
    "text",
    [
        "[whisper] see [1] (2024)",
        "emoji 👩‍👩‍👧 and 中文，日本語。",
        "שלום עולם, مرحبا",
        "e\u0301 combining, zero\u200bwidth",
        "a < b | c > d",
        "<|speaker:0|> hi <|speaker:12|> there",
        "before <|speaker:1|> after",
    ],
)
def test_ordinary_text_passes_unchanged(text: str) -> None:
    assert collapse(text) == text
    assert text_problem(text) is None


@pytest.mark.parametrize(
    "token", ["<|im_end|>", "<|semantic:12|>", "<|audio_start|>", "<|speaker:x|>", "<||>"]
)
def test_control_tokens_are_refused_by_name(token: str) -> None:
    problem = text_problem(f"hello {token} world <|speaker:1|>")
    assert problem is not None
    assert token in problem
    assert "<|speaker:N|>" in problem


def test_half_a_character_is_a_problem() -> None:
    """What Python makes of bytes in a command line that are not UTF-8."""
    problem = text_problem("Hello \udcff there")
    assert problem is not None
    assert problem.startswith(r"'\udcff' is half a character")


def test_nothing_to_speak_is_a_problem() -> None:
    assert text_problem("") is not None
    assert text_problem("<|speaker:1|> <|speaker:2|>") is not None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("This is **bold** text", "markdown"),
        ("see [the page](page.html)", "markdown"),
        ("# A heading", "markdown"),
        ("run `make` now", "markdown"),
        ("go to https://example.org/a?b now", "URL"),
        ("go to WWW.example.org now", "URL"),
        ("a" * 51, "50 characters"),
    ],
)
def test_what_reads_badly_is_a_warning(text: str, word: str) -> None:
    assert text_problem(text) is None
    (warning,) = text_warnings(text)
    assert word in warning


@pytest.mark.parametrize(
    "text",
    [
        "Plain speech, with 3 * 4 and snake_case - fine.",
        "[whisper] see [1] (2024)",
        "这是一个没有空格的很长的句子" * 8,
        "a" * 50,
    ],
)
def test_ordinary_text_has_no_warning(text: str) -> None:
    assert text_warnings(text) == ()


@given(st.text())
def test_any_text_gets_an_answer(text: str) -> None:
    text_problem(collapse(text))
    text_warnings(collapse(text))


def test_shown_values_are_short() -> None:
    assert shown("x" * 10**6) == "'" + "x" * 78 + "…"
    assert shown(3) == "3"
