"""Where the engine takes its rows from, without an engine."""

import threading
import time
from types import SimpleNamespace

import pytest

from fishcli.pipeline.sources import ClosedLoop, OpenSource

CALM_S = 5.0  # far longer than any thread needs


class Ready:
    """A preparing thread with rows ready."""

    def __init__(self, count):
        self.rows = [prepared(index) for index in range(count)]
        self.error = None

    def get(self):
        if self.error is not None:
            raise self.error
        return self.rows.pop(0) if self.rows else None

    def finish(self):
        """What is ready can still be taken."""

    def stop(self, error):
        self.error = error


def prepared(index):
    row = SimpleNamespace(id=f"row-{index}")
    request = SimpleNamespace(id=row.id, prompt=SimpleNamespace(shape=(11, 7)))
    return SimpleNamespace(row=row, fingerprint="", request=request)


def waiting(source):
    """A thread that waits in ``take``, and the list its result goes into."""
    taken = []
    thread = threading.Thread(target=lambda: taken.append(source.take(wait=True)))
    thread.start()
    time.sleep(0.05)
    assert thread.is_alive()
    return thread, taken


def test_a_closed_loop_gives_a_row_for_each_that_is_done():
    source = ClosedLoop(Ready(5), 2)
    assert [source.take(wait=True).id for _ in range(2)] == ["row-0", "row-1"]
    assert source.take(wait=False) is None
    assert not source.exhausted
    thread, taken = waiting(source)
    source.done(1)
    thread.join(CALM_S)
    assert [request.id for request in taken] == ["row-2"]
    assert source.take(wait=False) is None


def test_a_drained_loop_gives_nothing_to_who_waits_in_it():
    source = ClosedLoop(Ready(5), 1)
    source.take(wait=True)
    thread, taken = waiting(source)
    source.drain()
    source.done(1)
    thread.join(CALM_S)
    assert taken == [None]
    assert source.exhausted


def test_a_rows_clock_starts_when_the_row_before_it_was_done():
    source = ClosedLoop(Ready(2), 1)
    source.take(wait=True)
    before = time.perf_counter()
    source.done(1)
    after = time.perf_counter()
    time.sleep(0.02)
    source.take(wait=True)
    assert before <= source.tickets["row-1"].submitted <= after


@pytest.mark.parametrize("make", [OpenSource, lambda thread: ClosedLoop(thread, 3)])
def test_a_source_is_exhausted_when_no_more_rows_come(make):
    source = make(Ready(2))
    assert [source.take(wait=True).id for _ in range(2)] == ["row-0", "row-1"]
    assert not source.exhausted
    assert source.take(wait=True) is None
    assert source.exhausted
    assert set(source.tickets) == {"row-0", "row-1"}


@pytest.mark.parametrize("make", [OpenSource, lambda thread: ClosedLoop(thread, 3)])
def test_an_error_reaches_who_asks_for_a_row(make):
    source = make(Ready(2))
    source.fail(KeyError("lost"))
    with pytest.raises(KeyError, match="lost"):
        source.take(wait=True)
