"""Rules for the text of a row: white space, control tokens, and what only deserves a warning."""

from __future__ import annotations

import re

LONG_WORD = 50  # characters without a space; longer "words" are usually data, not speech

_CONTROL = re.compile(r"<\|.*?\|>")
_SPEAKER = re.compile(r"<\|speaker:\d+\|>")
_MARKDOWN = re.compile(
    r"\*\*\S"  # bold
    r"|(?<![*\w])\*[^\s*][^*]*\*(?![*\w])"  # emphasis
    r"|__\S|`|\]\(|^#{1,6} |^> |^\|"  # bold, code, link; heading, quote, table at the start
)
_MARKDOWN_HINT = re.compile(r"[*_`#|>\]]")  # cheap: most texts have none of these
_URL = re.compile(r"\b(?:https?://|ftp://|www\.)\S", re.IGNORECASE)
# From U+0E00 on, many scripts (Thai, Lao, Khmer, Han, Kana) write without spaces.
_LONG_WORD = re.compile(rf"[^\s\u0e00-\U0010ffff]{{{LONG_WORD + 1}}}")


def collapse(text: str) -> str:
    """``text`` with every run of white space as one space, and none at its ends."""
    return " ".join(text.split())


def text_problem(text: str) -> str | None:
    """Why a collapsed ``text`` cannot be spoken, or None.

    Control tokens would steer the model (end the turn, inject audio codes) instead of
    being read; only ``<|speaker:N|>`` is part of the language a manifest may use.
    """
    if not text:
        return "empty: a text with at least one word is expected"
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes of a command line that are not UTF-8
        return f"{shown(text[error.start])} is half a character: UTF-8 is expected"
    if "<|" not in text:
        return None
    for token in _CONTROL.findall(text):
        if not _SPEAKER.fullmatch(token):
            return f"control token {shown(token)}: only <|speaker:N|> is allowed"
    if not _SPEAKER.sub("", text).strip():
        return f"{shown(text)}: speaker tags without a word"
    return None


def text_warnings(text: str) -> tuple[str, ...]:
    """What in a collapsed ``text`` will probably be read badly. None of it stops the row."""
    warnings = []
    if _MARKDOWN_HINT.search(text) and _MARKDOWN.search(text):
        warnings.append("text contains markdown")
    if ("://" in text or "www." in text or "WWW." in text) and _URL.search(text):
        warnings.append("text contains a bare URL")
    if len(text) > LONG_WORD and max(map(len, text.split(" "))) > LONG_WORD:
        found = _LONG_WORD.search(text)
        if found:
            warnings.append(f"text contains a word of more than {LONG_WORD} characters")
    return tuple(warnings)


def shown(value: object, limit: int = 80) -> str:
    """``value`` as an error message shows it: ``repr``, cut to ``limit`` characters."""
    text = repr(value[: limit + 1]) if isinstance(value, str | bytes) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
