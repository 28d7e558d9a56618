"""A bounded hand-over between threads: one deque, one lock, two conditions.

Nobody polls: a thread that waits uses no CPU until the other side acts. A channel
ends in one of two ways: ``close`` lets what is queued drain, ``fail`` wakes everyone
at once with the error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ChannelClosedError(Exception):
    """Put into, or got from, a channel that is closed (and, for ``get``, empty)."""


class Channel(Generic[T]):
    """Bounded FIFO of ``capacity`` items (≥ 1) between any number of threads."""

    def __init__(self, capacity: int) -> None:
        assert capacity >= 1, capacity
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._not_empty = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)
        self._closed = False
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Add ``item``; waits while the channel is full (this is the backpressure).

        Raises the error given to :meth:`fail`, or :class:`ChannelClosedError`.
        """
        with self._not_full:
            while len(self._items) >= self._capacity and not self._ended():
                self._not_full.wait()
            self._raise_error()
            if self._closed:
                raise ChannelClosedError
            self._items.append(item)
            self._not_empty.notify()

    def get(self) -> T:
        """Take the oldest item; waits while there is none.

        Raises the error given to :meth:`fail`, or :class:`ChannelClosedError` once drained.
        """
        with self._not_empty:
            while not self._items and not self._ended():
                self._not_empty.wait()
            self._raise_error()
            if not self._items:
                raise ChannelClosedError
            return self._pop()

    def get_nowait(self) -> T | None:
        """Take the oldest item, or None if there is none right now.

        Raises the error given to :meth:`fail`, or :class:`ChannelClosedError` once drained.
        """
        with self._lock:
            self._raise_error()
            if self._items:
                return self._pop()
            if self._closed:
                raise ChannelClosedError
            return None

    def close(self) -> None:
        """No more items will come; those queued can still be taken."""
        with self._lock:
            self._closed = True
            self._wake_all()

    def fail(self, error: BaseException) -> None:
        """End at once: drop what is queued and raise ``error`` on both sides."""
        with self._lock:
            if self._error is None:
                self._error = error
            self._items.clear()
            self._wake_all()

    def __iter__(self) -> Iterator[T]:
        while True:
            try:
                yield self.get()
            except ChannelClosedError:
                return

    def _ended(self) -> bool:
        return self._closed or self._error is not None

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _pop(self) -> T:
        item = self._items.popleft()
        self._not_full.notify()
        return item

    def _wake_all(self) -> None:
        self._not_empty.notify_all()
        self._not_full.notify_all()
