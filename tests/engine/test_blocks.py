"""Blocks: nobody loses one, nobody shares one by accident, prefixes are shared on purpose."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fishcli.engine.blocks import TRASH, BlockManager

SIZE = 4


def test_rows_own_different_blocks_and_never_the_trash():
    manager = BlockManager(10, SIZE)
    rows = [manager.open_row(None) for _ in range(3)]
    for row in rows:
        assert manager.grow(row, 9)
    owned = [block for row in rows for block in row.table]
    assert len(owned) == len(set(owned)) == 9
    assert TRASH not in owned
    assert manager.available == 1


def test_growing_without_room_changes_nothing():
    manager = BlockManager(3, SIZE)
    row = manager.open_row(None)
    assert manager.grow(row, 8)
    before = list(row.table)
    assert not manager.grow(row, 17)
    assert row.table == before
    assert manager.grow(row, 12)


def test_a_prefix_is_there_once_for_all_its_readers():
    manager = BlockManager(8, SIZE)
    prefix = manager.make_prefix(b"voice", 8)
    rows = [manager.open_row(b"voice") for _ in range(3)]
    assert manager.held(b"voice") == 2
    for row in rows:
        assert manager.grow(row, 10)
        assert row.table[:2] == prefix.blocks
    assert manager.available == 8 - 2 - 3


def test_idle_prefixes_give_way_least_recently_used_first():
    manager = BlockManager(6, SIZE)
    manager.make_prefix(b"a", 8)
    manager.make_prefix(b"b", 8)
    manager.close_row(manager.open_row(b"a"))  # now b is the one not used for longest
    row = manager.open_row(None)
    assert manager.grow(row, 16)
    assert manager.has_prefix(b"a") and not manager.has_prefix(b"b")


def test_a_prefix_that_is_read_never_gives_way():
    manager = BlockManager(4, SIZE)
    manager.make_prefix(b"a", 8)
    reader = manager.open_row(b"a")
    other = manager.open_row(None)
    assert not manager.grow(other, 12)
    manager.close_row(reader)
    assert manager.grow(other, 12)


def test_the_check_finds_a_leak():
    manager = BlockManager(4, SIZE)
    row = manager.open_row(None)
    manager.grow(row, 4)
    row.own = []
    with pytest.raises(AssertionError, match="leaked"):
        manager.check()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.booleans()), max_size=60))
def test_any_sequence_of_opening_growing_and_closing_keeps_the_books(steps):
    manager = BlockManager(12, SIZE)
    open_rows = []
    for action, positions, voiced in steps:
        if action == 0:
            key = bytes([positions % 3]) if voiced else None
            there = key is None or manager.has_prefix(key)
            if not there and manager.make_prefix(key, SIZE * (1 + positions % 2)) is None:
                continue
            open_rows.append(manager.open_row(key))
        elif open_rows and action in (1, 2):
            manager.grow(open_rows[positions % len(open_rows)], positions)
        elif open_rows:
            manager.close_row(open_rows.pop(positions % len(open_rows)))
        owned = [block for row in open_rows for block in row.own]
        prefixes = {id(row.prefix): row.prefix for row in open_rows if row.prefix}
        owned += [block for prefix in prefixes.values() for block in prefix.blocks]
        assert len(owned) == len(set(owned))
        assert len(owned) + manager.available == 12
    for row in open_rows:
        manager.close_row(row)
    manager.check()
