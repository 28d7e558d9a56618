"""How much of a sentence was understood."""

from __future__ import annotations

import re


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """(errors, words of ``said``): the fewest words put in, left out or exchanged.

    Case and punctuation don't count.
    """
    wanted, found = _words(said), _words(heard)
    row = list(range(len(found) + 1))  # distances between no words and the first j heard
    for i, word in enumerate(wanted, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(found, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1], len(wanted)


def _words(text: str) -> list[str]:
    return re.findall(r"[\w']+", text.lower().replace("’", "'"))
