"""The exceptions a user can meet: each carries one clear line and an exit code.

``FishError`` and its children end a command; ``RowError`` ends one row only and
is written down in that row's record.
"""


class FishError(Exception):
    """A fault that ends the command. ``str(error)`` is the one line the user reads."""

    exit_code = 1


class RunError(FishError):
    """The run itself failed: disk full, broken checkpoint, lost device. Exit code 1."""

    exit_code = 1


class UsageError(FishError):
    """Bad flags, refused settings, nothing valid to do. Exit code 2."""

    exit_code = 2


class RowError(Exception):
    """One row cannot be done.

    ``reason`` is a short stable word for tables (``bad_text``, ``no_audio``, …);
    ``str(error)`` names field, value and what is allowed. ``passing`` marks causes
    that may be gone on a rerun (a disk that was away), which a plain rerun tries again.
    """

    def __init__(self, reason: str, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.passing = passing
