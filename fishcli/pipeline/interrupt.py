"""Signals become one exception, raised only where the main thread can be stopped."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fishcli.errors import FishError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(FishError):  # noqa: N818 - not an error: someone asked for it
    """The run was asked to stop: exit code 130 (Ctrl-C, time limit) or 143 (SIGTERM)."""

    def __init__(self, why: str, exit_code: int = 130) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class Interrupts:
    """Turns the first SIGINT or SIGTERM into :class:`Interrupted`, the second into an exit.

    The exception is raised inside :meth:`stoppable` only; a signal that comes elsewhere
    (while files are finished) waits for the next such stretch. The second signal ends the
    process at once: files appear under their names only when whole, so nothing breaks.
    """

    def __init__(self) -> None:
        self._pending: Interrupted | None = None
        self._stoppable = False

    @contextmanager
    def installed(self) -> Iterator[Interrupts]:
        """Handle signals inside the block. Elsewhere than in the main thread: do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Inside the block a signal, also one that came before it, raises."""
        self._stoppable = True
        try:
            self._raise_pending()
            yield
        finally:
            self._stoppable = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        exit_code = 128 + number
        if self._pending is not None:
            os._exit(exit_code)
        self._pending = Interrupted(f"stopped by {signal.Signals(number).name}", exit_code)
        if self._stoppable:
            self._raise_pending()

    def _raise_pending(self) -> None:
        if self._pending is not None:
            raise self._pending
