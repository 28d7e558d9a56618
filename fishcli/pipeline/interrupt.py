"""Signals become one exception, raised or handed over where a run can be stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

from fishcli.errors import FishError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# `timeout` and job managers signal a process and then its group, which is one request.
SAME_REQUEST_S = 0.5
TIME_LIMIT = "the time limit is reached"


class Interrupted(FishError):  # noqa: N818 - not an error: someone asked for it
    """The run was asked to stop: exit code 130 (Ctrl-C, time limit) or 143 (SIGTERM)."""

    def __init__(self, why: str, exit_code: int = 130) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class Interrupts:
    """Turns the first SIGINT or SIGTERM into :class:`Interrupted`, the next into an exit.

    The exception is raised inside :meth:`stoppable` and passed on inside :meth:`handed_to`;
    a signal that comes elsewhere (while the report is written) waits for the next such
    stretch. The second signal ends the process at once: files appear under their names
    only when whole, so nothing breaks.
    """

    def __init__(self) -> None:
        self._pending: Interrupted | None = None
        self._since = 0.0  # time.monotonic() of the first signal
        self._stoppable = False
        # A signal handler may put into a SimpleQueue whatever the main thread is doing.
        self._arrived: SimpleQueue[Interrupted | None] = SimpleQueue()

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
        """Inside the block a signal, also one that came before it, raises.

        For stretches where the main thread works alone: an exception out of nowhere could
        leave a lock that it shares with other threads in the wrong state.
        """
        self._stoppable = True
        try:
            self._raise_pending()
            yield
        finally:
            self._stoppable = False

    @contextmanager
    def handed_to(self, stop: Callable[[Interrupted], None]) -> Iterator[None]:
        """Inside the block a signal, also one that came before it, calls ``stop``.

        ``stop`` is called in a thread of its own, so it may take locks.
        """
        listener = threading.Thread(target=self._listen, args=(stop,), name="interrupts")
        listener.start()
        try:
            yield
        finally:
            self._arrived.put(None)
            listener.join()

    def _listen(self, stop: Callable[[Interrupted], None]) -> None:
        while (arrived := self._arrived.get()) is not None:
            stop(arrived)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        exit_code = 128 + number
        now = time.monotonic()
        if self._pending is not None:
            if now - self._since > SAME_REQUEST_S:
                os._exit(exit_code)
            return
        self._pending = Interrupted(f"stopped by {signal.Signals(number).name}", exit_code)
        self._since = now
        self._arrived.put(self._pending)
        if self._stoppable:
            self._raise_pending()

    def _raise_pending(self) -> None:
        if self._pending is not None:
            raise self._pending
