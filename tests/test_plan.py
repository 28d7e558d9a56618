"""The plan: what a run does, in which order, and what it refuses before any work."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fishcli.errors import RunError, UsageError
from fishcli.estimate import estimate_frames, frame_budget
from fishcli.fingerprint import Fingerprinter, ReferenceDigests
from fishcli.ledger import Ledger, Record, Status
from fishcli.manifest import RowDefaults, RowSource, open_manifest
from fishcli.outdir import OutputFolder
from fishcli.plan import PROBLEMS_KEPT, Counts, Plan, Policy, scan
from fishcli.records import Row


@dataclass
class Run:
    """A manifest, an output folder and its ledger, on disk."""

    folder: Path
    model: str = "m"

    @property
    def out(self) -> OutputFolder:
        return OutputFolder(self.folder / "out")

    def write(self, *rows: dict[str, Any]) -> None:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (self.folder / "m.jsonl").write_text(lines, encoding="utf-8")

    def plan(self, *, defaults: RowDefaults | None = None, **policy: Any) -> Plan:
        source = RowSource(open_manifest(self.folder / "m.jsonl"), defaults or RowDefaults())
        with Ledger.read(self.out.path) as ledger:
            return scan(source, ledger, self.fingerprinter(), Policy(**policy), self.out)

    def fingerprinter(self) -> Fingerprinter:
        self.digests = ReferenceDigests(self.out.cache / "references.jsonl")
        return Fingerprinter(self.model, "wav", "PCM_16", self.digests)

    def finish(self, row: Row, status: Status = "ok", **changes: Any) -> Record:
        """Do ``row``: write its file and its record."""
        file = "" if status == "failed" else self.out.wav_name(row.id, ".wav")
        if file:
            self.out.wav_path(row.id, ".wav").write_bytes(b"wave")
        values = {"file": file, "bytes": 4 if file else 0, **changes}
        fingerprint = self.fingerprinter().fingerprint(row)
        record = Record(row.id, fingerprint, status, **values)
        with Ledger.open(self.out.path) as ledger:
            ledger.append([record])
        return record


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def todo(plan: Plan) -> list[str]:
    rows = [row for window in plan.windows(100) for row in window]
    assert len(rows) == plan.counts.todo
    return sorted(row.id for row in rows)


def row_of(plan: Plan, row_id: str) -> Row:
    (row,) = [row for row in plan.rows() if row.id == row_id]
    assert isinstance(row, Row)
    return row


def texts(*ids: str) -> list[dict[str, Any]]:
    return [{"id": row_id, "text": f"text of {row_id}"} for row_id in ids]


def test_a_fresh_run_does_every_valid_row_and_counts_add_up(run: Run) -> None:
    run.write(*texts("a", "b"), {"text": ""}, {"id": "c", "text": "x", "top_k": 0})
    plan = run.plan()
    assert plan.counts == Counts(todo=2, skipped=0, failed=2, left=0)
    assert plan.counts.rows == 4
    assert plan.valid == 2
    assert todo(plan) == ["a", "b"]
    assert plan.failed_reasons == {"bad_text": 1, "bad_value": 1}
    assert [problem[:6] for problem in plan.problems] == ["line 3", "line 4"]


def test_no_valid_row_shows(run: Run) -> None:
    run.write({"text": ""}, {})
    assert run.plan().valid == 0
    run.write()
    assert run.plan().counts.rows == 0


def test_problems_are_counted_but_not_kept_without_end(run: Run) -> None:
    run.write(*[{"text": "", "top_k": 0}] * (PROBLEMS_KEPT + 1))
    plan = run.plan()
    assert len(plan.problems) == PROBLEMS_KEPT
    assert plan.problem_count == 2 * (PROBLEMS_KEPT + 1)


def test_a_rerun_skips_what_is_done_by_id_and_content_not_by_position(run: Run) -> None:
    run.write(*texts("a", "b", "c"))
    for row_id in ("a", "b"):
        run.finish(row_of(run.plan(), row_id))
    run.write(*texts("new", "c", "b", "a"))
    plan = run.plan()
    assert plan.counts == Counts(todo=2, skipped=2)
    assert todo(plan) == ["c", "new"]


def test_a_changed_row_is_done_again(run: Run) -> None:
    run.write(*texts("a", "b"))
    plan = run.plan()
    for row_id in ("a", "b"):
        run.finish(row_of(plan, row_id))
    run.write({"id": "a", "text": "another text"}, *texts("b"))
    assert todo(run.plan()) == ["a"]


def test_another_model_is_another_result(run: Run) -> None:
    run.write(*texts("a"))
    run.finish(row_of(run.plan(), "a"))
    assert todo(run.plan()) == []
    run.model = "other"
    assert todo(run.plan()) == ["a"]


def test_a_manifest_of_texts_alone_resumes(run: Run) -> None:
    run.write({"text": "same"}, {"text": "same"}, {"text": "other"})
    rows = [row for row in run.plan().rows() if isinstance(row, Row)]
    run.finish(rows[1])
    run.write({"text": "more"}, {"text": "same"}, {"text": "same"}, {"text": "other"})
    plan = run.plan()
    assert plan.counts == Counts(todo=3, skipped=1)
    assert rows[1].id not in todo(plan)


@pytest.mark.parametrize(
    "harm",
    [Path.unlink, lambda path: path.write_bytes(b"short"), lambda path: os.truncate(path, 0)],
)
def test_a_done_row_whose_file_is_missing_or_of_another_size_is_done_again(
    run: Run, harm: Callable[[Path], object]
) -> None:
    run.write(*texts("a", "b"))
    for row_id in ("a", "b"):
        run.finish(row_of(run.plan(), row_id))
    harm(run.out.wav_path("a", ".wav"))
    assert todo(run.plan()) == ["a"]


def test_what_a_rerun_does_with_rows_that_failed(run: Run) -> None:
    run.write(*texts("ok", "capped", "lasting", "passing", "new"))
    plan = run.plan()
    run.finish(row_of(plan, "ok"))
    run.finish(row_of(plan, "capped"), "capped")
    run.finish(row_of(plan, "lasting"), "failed", reason="no_audio")
    run.finish(row_of(plan, "passing"), "failed", reason="disk", passing=True)

    plain = run.plan()
    assert todo(plain) == ["new", "passing"]
    assert plain.counts == Counts(todo=2, skipped=2, failed=1)
    assert plain.skipped_capped == 1
    assert plain.failed_reasons == {"no_audio": 1}

    retry = run.plan(retry_failed=True)
    assert todo(retry) == ["capped", "lasting", "passing"]
    assert retry.counts == Counts(todo=3, skipped=1, left=1)

    assert len(todo(run.plan(overwrite=True))) == 5


def test_retry_failed_leaves_changed_rows_alone(run: Run) -> None:
    run.write(*texts("a", "b"))
    plan = run.plan()
    run.finish(row_of(plan, "a"))
    run.finish(row_of(plan, "b"), "failed")
    run.write({"id": "a", "text": "changed"}, {"id": "b", "text": "changed"})
    plan = run.plan(retry_failed=True)
    assert todo(plan) == ["b"]
    assert plan.counts == Counts(todo=1, left=1)


def test_a_failed_row_that_was_corrected_is_done(run: Run) -> None:
    run.write(*texts("a"))
    run.finish(row_of(run.plan(), "a"), "failed", reason="no_audio")
    assert todo(run.plan()) == []
    run.write({"id": "a", "text": "corrected"})
    assert todo(run.plan()) == ["a"]


def test_policies_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="exclude"):
        Policy(retry_failed=True, overwrite=True)
    with pytest.raises(UsageError, match="limit is 0"):
        Policy(limit=0)


def test_a_limit_looks_at_the_first_rows_only(run: Run) -> None:
    run.write(*texts("a", "b", "a"))
    plan = run.plan(limit=2)
    assert plan.counts == Counts(todo=2)
    assert todo(plan) == ["a", "b"]
    assert len(list(plan.rows())) == 2


@pytest.mark.parametrize(
    ("one", "two"), [("a", "a"), ("a", "A"), ("straße", "STRASSE"), ("é", "e\u0301")]
)
def test_ids_that_are_one_file_name_are_refused_with_both_lines(
    run: Run, one: str, two: str
) -> None:
    run.write(*texts("x", one, "y", two))
    with pytest.raises(UsageError) as caught:
        run.plan()
    message = str(caught.value)
    assert "lines 2 and 4" in message
    assert repr(one) in message
    assert repr(two) in message


def test_the_id_of_a_bad_row_counts_too(run: Run) -> None:
    run.write({"id": "a", "text": ""}, *texts("a"))
    with pytest.raises(UsageError, match="lines 1 and 2 both have the id 'a'"):
        run.plan()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("aAbBéÉßſ", min_size=1, max_size=2), min_size=1, max_size=6))
def test_ids_pass_only_if_all_fold_differently(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str]
) -> None:
    run = Run(tmp_path_factory.mktemp("any"))
    run.write(*texts(*ids))
    if len({row_id.casefold() for row_id in ids}) == len(ids):
        assert run.plan().counts.todo == len(ids)
    else:
        with pytest.raises(UsageError, match="lines"):
            run.plan()


def test_a_reference_inside_the_output_folder_is_refused(run: Run) -> None:
    clip = run.out.wav_path("old", ".wav")
    clip.write_bytes(b"x")
    run.write({"text": "a", "ref_audio": "out/wavs/old.wav", "ref_text": "t"})
    with pytest.raises(UsageError, match=r"line 1: the reference .*old\.wav lies in the output"):
        run.plan()
    spooled = run.out.cache / "clips" / "x.wav"
    spooled.parent.mkdir(parents=True)
    spooled.write_bytes(b"x")
    run.write({"text": "a", "ref_audio": str(spooled), "ref_text": "t"})
    assert run.plan().counts.todo == 1


def test_a_fresh_plan_hashes_no_reference_and_a_resumed_one_each_once(run: Run) -> None:
    for name in ("x.wav", "y.wav"):
        (run.folder / name).write_bytes(name.encode())
    run.write(
        *[
            {"id": f"{n}", "text": "a", "ref_audio": f"{'xy'[n % 2]}.wav", "ref_text": "t"}
            for n in range(10)
        ]
    )
    plan = run.plan()
    assert run.digests.hashed == 0
    assert plan.distinct_references == 2
    for n in range(3):
        run.finish(row_of(plan, f"{n}"))
    (run.out.cache / "references.jsonl").unlink()
    assert run.plan().counts.skipped == 3
    assert run.digests.hashed == 2
    run.plan()
    assert run.digests.hashed == 0


def test_a_replaced_clip_makes_its_rows_new(run: Run) -> None:
    (run.folder / "x.wav").write_bytes(b"one")
    run.write({"id": "a", "text": "a", "ref_audio": "x.wav", "ref_text": "t"})
    run.finish(row_of(run.plan(), "a"))
    assert todo(run.plan()) == []
    (run.folder / "x.wav").write_bytes(b"three")
    assert todo(run.plan()) == ["a"]


def test_windows_go_by_voice_then_length_and_the_last_by_length(run: Run) -> None:
    for name in ("x.wav", "y.wav"):
        (run.folder / name).write_bytes(b"x")
    rows = []
    for n in range(12):
        voice = {"ref_audio": f"{'xy'[n % 2]}.wav", "ref_text": "t"} if n % 3 else {}
        rows.append({"id": f"{n:02}", "text": "w" * (7 * n % 12 + 1), "more": n, **voice})
    run.write(*rows)
    plan = run.plan()
    first, second, last = plan.windows(5)
    assert [len(window) for window in (first, second, last)] == [5, 5, 2]
    assert sorted(row.id for row in first) == [f"{n:02}" for n in range(5)]
    for window in (first, second):
        voices = [str(row.reference.path) if row.reference else "" for row in window]
        assert voices == sorted(voices)
        for name in set(voices):
            lengths = [len(r.text) for r, v in zip(window, voices, strict=True) if v == name]
            assert lengths == sorted(lengths, reverse=True)
    lengths = [len(row.text) for row in last]
    assert lengths == sorted(lengths, reverse=True)
    assert all(not row.extra for row in first)
    assert list(plan.windows(5)) == [first, second, last]


def test_a_manifest_that_changes_after_the_scan_ends_the_run(run: Run) -> None:
    run.write(*texts("a"))
    plan = run.plan()
    run.write(*texts("b", "c"))
    with pytest.raises(RunError, match="changed"):
        list(plan.windows(100))


def test_what_the_memory_plan_and_the_results_need(run: Run) -> None:
    (run.folder / "x.wav").write_bytes(b"x")
    run.write(
        {"text": "hello", "year": 1999, "note": "x"},
        {"text": "é" * 20, "ref_audio": "x.wav", "ref_text": "said", "year": 2.5},
        {"text": "", "bad_rows_columns": True},
    )
    plan = run.plan()
    assert plan.longest_prompt_bytes == 44
    assert plan.estimated_frames == estimate_frames("hello") + estimate_frames("é" * 20)
    assert plan.longest_budget == frame_budget("é" * 20, 4096)
    assert dict(plan.columns.items()) == {
        "year": "float",
        "note": "string",
        "bad_rows_columns": "bool",
    }


def test_planning_and_results_never_load_torch() -> None:
    code = "import fishcli.plan, fishcli.results, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
