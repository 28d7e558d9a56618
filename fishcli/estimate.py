"""How long a text will be when spoken, from its UTF-8 bytes alone.

One estimate serves the plan (order of rows), the budgets of the engine and the bench,
so that they cannot disagree. English reads at about 15 bytes a second; scripts of
three bytes a character speak proportionally fewer characters, so bytes serve them too.
"""

import math

FRAME_RATE = 44100 / 2048  # frames a second of the S2 codec
BYTES_PER_SECOND = 15.0


def estimate_frames(text: str) -> int:
    """Expected frames of ``text`` (bytes · 21.53 / 15 and a quarter second of margins)."""
    return math.ceil(len(text.encode()) * FRAME_RATE / BYTES_PER_SECOND + FRAME_RATE / 4)


def frame_budget(text: str, max_new_tokens: int) -> int:
    """Frames after which a row is cut off and flagged ``capped``.

    Twice the estimate and two seconds, never above ``max_new_tokens``: a model that
    misses its stop token costs a bounded time, not 4096 frames.
    """
    return frame_budget_of(estimate_frames(text), max_new_tokens)


def frame_budget_of(estimate: int, max_new_tokens: int) -> int:
    """:func:`frame_budget` of a text with this estimate."""
    return min(max_new_tokens, math.ceil(2 * estimate + 2 * FRAME_RATE))
