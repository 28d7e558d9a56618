"""Where the engine takes its rows from: as fast as it can, or in a closed loop."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from fishcli.pipeline.prepare import PreparingThread, Ticket
from fishcli.records import Request


class TicketSource(Protocol):
    """A ``RequestSource`` that keeps a ticket of every row it gives out."""

    tickets: dict[str, Ticket]

    def take(self, *, wait: bool) -> Request | None: ...

    @property
    def exhausted(self) -> bool: ...

    def drain(self) -> None:
        """Give out nothing more: what is running may finish."""
        ...

    def done(self, count: int) -> None:
        """``count`` rows have their audio."""
        ...

    def fail(self, error: BaseException) -> None:
        """Wake a waiting :meth:`take`, which raises ``error``."""
        ...


class _PreparedRows:
    """What every source does: give out prepared rows and keep their tickets."""

    def __init__(self, thread: PreparingThread) -> None:
        self.tickets: dict[str, Ticket] = {}
        self._thread = thread
        self._exhausted = False

    @property
    def exhausted(self) -> bool:
        """Whether no row will ever come again."""
        return self._exhausted

    def drain(self) -> None:
        """Give out nothing more: what is running may finish."""
        self._exhausted = True
        self._thread.finish()

    def _give(self, submitted: float | None = None) -> Request | None:
        """The next row, waited for; its clock started at ``submitted``, by default now."""
        prepared = self._thread.get()
        if prepared is None:
            self._exhausted = True
            return None
        self.tickets[prepared.row.id] = Ticket.of(prepared, submitted)
        return prepared.request


class OpenSource(_PreparedRows):
    """The next row whenever a slot is free.

    Waits for the preparing thread whatever ``wait`` says: which rows share a batch must
    follow from their order, not from how fast they were prepared.
    """

    def take(self, *, wait: bool) -> Request | None:
        return self._give()

    def done(self, count: int) -> None:
        """Nothing waits for this here."""

    def fail(self, error: BaseException) -> None:
        self._thread.stop(error)


class ClosedLoop(_PreparedRows):
    """``concurrency`` rows in flight: a row is submitted when another has its audio.

    A row's clock starts when it is submitted, so waiting for a slot counts.
    """

    def __init__(self, thread: PreparingThread, concurrency: int) -> None:
        super().__init__(thread)
        self._error: BaseException | None = None
        self._condition = threading.Condition()
        self._submissions = [time.perf_counter()] * concurrency  # times, oldest first

    def take(self, *, wait: bool) -> Request | None:
        with self._condition:
            while not self._submissions:
                if self._error is not None:  # the rows in flight will never be done
                    raise self._error
                if not wait:
                    return None
                self._condition.wait()
            if self._exhausted:  # told to drain while it waited
                return None
            submitted = self._submissions.pop(0)
        return self._give(submitted)

    def done(self, count: int) -> None:
        with self._condition:
            self._submissions += [time.perf_counter()] * count
            self._condition.notify()

    def fail(self, error: BaseException) -> None:
        self._thread.stop(error)
        with self._condition:
            self._error = error
            self._condition.notify()
