"""Who gets a slot, who gives way, what runs together: decisions alone, no model."""

import pytest
import torch

from fishcli.engine.blocks import BlockManager
from fishcli.engine.scheduler import Batching, Scheduler, Stretch, prefill_groups
from fishcli.records import Request, Sampling

SIZE = 4


def request(columns=SIZE, frames=8, *, top_k=30, shared=0, expected=0):
    prompt = torch.arange(3 * columns, dtype=torch.int32).view(3, columns)
    return Request(
        "row",
        prompt,
        Sampling(top_k=top_k),
        seed=0,
        max_frames=frames,
        shared_columns=shared,
        expected_frames=expected,
    )


def scheduler(slots=2, blocks=100, tile=0):
    return Scheduler(slots, BlockManager(blocks, SIZE), Batching(tile))


def place(schedule, row, now=1.0):
    return schedule.place(row, now)[0]


def test_the_lowest_free_slot_is_taken_first():
    schedule = scheduler(3)
    assert [place(schedule, request()).slot for _ in range(3)] == [0, 1, 2]
    schedule.release(2)
    schedule.release(0)
    assert [place(schedule, request()).slot for _ in range(2)] == [0, 2]
    assert not schedule.has_slot


def test_a_row_fits_while_all_can_reach_their_expected_lengths():
    schedule = scheduler(blocks=8)
    row = request(columns=4, frames=20, expected=8)  # three blocks expected, six at most
    place(schedule, row)
    assert schedule.fits(row)
    assert not schedule.fits(request(columns=4, frames=20))  # without an estimate: at its most


def test_the_first_row_always_fits():
    assert scheduler(blocks=1).fits(request(columns=4, frames=400))


def test_the_youngest_row_gives_way_and_holds_no_more_than_it_has_used():
    """By a coarse clock all came at once; then the slot decides, in growing as in leaving."""
    schedule = scheduler(blocks=3)
    place(schedule, request())
    second = place(schedule, request())
    schedule.release(0)
    third = place(schedule, request())  # in slot 0, but admitted last
    leaving = []
    for row in schedule.starved(1):
        assert row.blocks.count == schedule.manager.needed(row.cached)
        leaving.append(schedule.release(row.slot))
    assert leaving == [second]
    assert third.blocks.count == 2


def test_a_row_that_gave_way_comes_back_with_room_for_what_it_has_cached():
    schedule = scheduler(blocks=3)
    row = place(schedule, request(columns=2 * SIZE))
    schedule.release(row.slot)
    other = place(schedule, request(columns=2 * SIZE))
    assert not schedule.reseat(row)
    schedule.release(other.slot)
    assert schedule.reseat(row)
    assert row.blocks.count == 2


def test_a_prefix_is_new_once_and_ends_before_the_last_column():
    schedule = scheduler()
    _, prefix = schedule.place(request(columns=2 * SIZE, shared=2 * SIZE), 1.0)
    assert prefix is not None and len(prefix.blocks) == 1
    row, again = schedule.place(request(columns=2 * SIZE, shared=2 * SIZE), 1.0)
    assert again is None
    assert row.blocks.prefix is prefix


def test_a_frame_reaches_from_the_first_slot_to_the_last_running_one():
    schedule = scheduler(4)
    for top_k in (5, 90, 7):
        place(schedule, request(top_k=top_k))
    schedule.release(0)
    schedule.release(1)
    assert schedule.frame() == [Stretch(0, 3, SIZE + 1, 7)]


def test_tiles_without_a_row_are_left_out():
    schedule = scheduler(6, tile=2)
    for _ in range(6):
        place(schedule, request())
    for slot in (1, 2, 3):
        schedule.release(slot)
    assert [(part.start, part.end) for part in schedule.frame()] == [(0, 2), (4, 6)]


def test_the_bound_of_cached_positions_stops_at_a_rows_limit():
    schedule = scheduler()
    row = place(schedule, request(frames=2))
    for _ in range(5):
        schedule.frame()
    assert row.cached == row.limit == SIZE + 2


@pytest.mark.parametrize("isolated", [True, False])
def test_every_prompt_is_in_one_group(isolated):
    groups = prefill_groups([5, 8000, 7, 7], isolated=isolated)
    assert sorted(index for group in groups for index in group) == [0, 1, 2, 3]
    assert groups == ([[1], [2], [3], [0]] if isolated else [[1], [2, 3, 0]])
