"""Which runs give the same bytes."""

import pytest
import torch

from tests.pipeline.conftest import STOPPING, row, sounds

ROWS = [
    row(number, text=f"Row {number}{' and more' * (index % 3)}.", max_new_tokens=4 + index)
    for index, number in enumerate(STOPPING[4:10])
]


def test_the_same_command_twice_gives_the_same_files(run):
    run(ROWS)
    run(ROWS, out="again")
    assert sounds(run.out) == sounds(run.folder / "again")
    run(ROWS, out="seeded", seed=1)
    assert all(sounds(run.out)[name] != x for name, x in sounds(run.folder / "seeded").items())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each row's file when it is made in a run of its own."""
    from tests.pipeline.conftest import Runs

    made = {}
    for number, each in enumerate(ROWS):
        alone = Runs(tmp_path_factory.mktemp(f"alone-{number}"))
        alone([each], deterministic=True)
        made |= sounds(alone.out)
    return made


@pytest.mark.parametrize("slots", [1, 2, None])
def test_deterministic_rows_do_not_depend_on_their_company(run, alone, slots):
    run(ROWS, deterministic=True, max_batch_size=slots)
    assert sounds(run.out) == alone


def test_deterministic_rows_do_not_depend_on_how_many_threads_torch_has(run, alone):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 3)
    try:
        run(ROWS, deterministic=True)
    finally:
        torch.set_num_threads(before)
    assert sounds(run.out) == alone


def test_deterministic_rows_do_not_depend_on_order_or_window(run, alone):
    run(ROWS[::-1], deterministic=True, plan_window=2, max_batch_size=3)
    assert sounds(run.out) == alone


def test_deterministic_rows_do_not_depend_on_what_was_done_before(run, alone):
    run(ROWS[2:4], deterministic=True)
    assert run(ROWS, deterministic=True).rows.skipped == 2
    assert sounds(run.out) == alone
