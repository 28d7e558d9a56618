"""One line of an examination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "--", "FAIL"]  # "--": for information, nothing depends on it


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and whether that is good."""

    verdict: Verdict
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.verdict:>4}  {self.subject}: {self.text}"


def judge(good: bool, subject: str, text: str) -> Finding:
    """A finding that passes or fails."""
    return Finding("ok" if good else "FAIL", subject, text)
