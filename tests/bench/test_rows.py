"""The bench's rows: reproducible, all different, spread like real ones."""

import numpy as np
import pytest
import soundfile

from fishcli.bench.rows import LONGEST, SHORTEST, longest_text, make_rows
from fishcli.estimate import estimate_frames, frame_budget

COUNT = 2000


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return make_rows(COUNT, LONGEST, "none", tmp_path_factory.mktemp("clips"))


def test_texts_and_ids_are_unique(many):
    assert len({row.text for row in many.rows}) == COUNT
    assert len({row.id for row in many.rows}) == COUNT
    assert set(many.frames) == {row.id for row in many.rows}


def test_a_seed_gives_the_same_rows_again_and_another_gives_others(many, tmp_path):
    again = make_rows(COUNT, LONGEST, "none", tmp_path)
    assert (again.rows, again.frames) == (many.rows, many.frames)
    other = make_rows(COUNT, LONGEST, "none", tmp_path, seed=1)
    assert {row.text for row in other.rows}.isdisjoint(row.text for row in many.rows)


def test_lengths_are_spread(many):
    sizes = np.array([len(row.text.encode()) for row in many.rows])
    assert sizes.min() >= SHORTEST - 1  # a text may end before a space
    assert sizes.max() <= LONGEST
    low, median, high = np.percentile(sizes, [10, 50, 90])
    assert 70 < median < 100
    assert high > 3 * low


def test_frames_are_lognormal_around_the_estimate(many):
    ratios = [many.frames[row.id] / estimate_frames(row.text) for row in many.rows]
    logs = np.log(ratios)
    assert abs(logs.mean()) < 0.03
    assert abs(logs.std() - 0.25) < 0.02
    assert many.longest == max(many.frames.values())


@pytest.mark.parametrize(("context", "overhead"), [(512, 120), (4096, 520), (32768, 520)])
def test_rows_fit_the_context(tmp_path, context, overhead):
    made = make_rows(COUNT, longest_text(context, overhead), "none", tmp_path)
    for row in made.rows:
        positions = overhead + len(row.text.encode())
        assert positions + made.frames[row.id] <= context
        assert positions + frame_budget(row.text, row.max_new_tokens) <= context


@pytest.mark.parametrize("seed", range(5))
def test_every_row_has_room_whether_its_frames_are_drawn_or_the_models(tmp_path, seed):
    made = make_rows(8, LONGEST, "none", tmp_path, seed)
    assert made.largest_budget(exact=True) == made.longest
    budgets = [frame_budget(row.text, row.max_new_tokens) for row in made.rows]
    assert made.largest_budget(exact=False) == max(budgets)


@pytest.mark.parametrize(("kind", "clips"), [("shared", 1), ("unique", 3)])
def test_references_are_one_for_all_or_one_each(tmp_path, kind, clips):
    rows = make_rows(3, LONGEST, kind, tmp_path).rows
    references = {row.reference for row in rows}
    assert len(references) == clips
    contents = {soundfile.read(reference.path)[0].tobytes() for reference in references}
    assert len(contents) == clips
    assert all(soundfile.info(reference.path).duration == 10.0 for reference in references)


def test_without_references_rows_have_none(many, tmp_path):
    assert all(row.reference is None for row in many.rows)
    assert list(tmp_path.iterdir()) == []
