"""Decides what a run has to do: one streaming pass over the rows, then windows of work.

The scan keeps a few bytes for each row (what is to be done with it, a hash of its id),
never the row; the run reads the manifest again, window by window.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np

from fishcli.errors import RowError, UsageError
from fishcli.estimate import estimate_frames, frame_budget_of
from fishcli.fingerprint import Fingerprinter
from fishcli.ledger import Ledger, Record
from fishcli.manifest.columns import ColumnKinds
from fishcli.manifest.sameids import SameIds
from fishcli.outdir import OutputFolder
from fishcli.records import BadRow, Row, check_range

PROBLEMS_KEPT = 100

TODO, DONE, CAPPED, BAD, FAILED, LEFT = range(6)  # what the plan makes of a row


@dataclass(frozen=True, slots=True)
class Policy:
    """Which rows a rerun does. The default: those missing, changed, or failed in passing."""

    retry_failed: bool = False  # all failed and capped rows, and nothing else
    overwrite: bool = False  # every row, done or not
    limit: int | None = None  # look at the manifest's first so many rows only

    def __post_init__(self) -> None:
        if self.retry_failed and self.overwrite:
            raise UsageError("--retry-failed and --overwrite exclude each other")
        if self.limit is not None:
            check_range("limit", self.limit, 1, 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows by what the plan makes of them: ``rows`` is the sum of the others."""

    todo: int = 0
    skipped: int = 0  # done before: ok, or capped
    failed: int = 0  # bad rows, and rows that failed before for a lasting cause
    left: int = 0  # not asked for; with ``retry_failed`` only

    @property
    def rows(self) -> int:
        return self.todo + self.skipped + self.failed + self.left


@dataclass(slots=True)
class Plan:
    """What a run has to do, filled by :func:`scan`."""

    source: Iterable[Row | BadRow]
    limit: int | None
    counts: Counts = field(default_factory=Counts)
    valid: int = 0  # rows that are not bad; none at all means the command was wrong
    skipped_capped: int = 0  # of the skipped, those whose file is capped
    failed_reasons: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)  # of bad rows, the first PROBLEMS_KEPT
    problem_count: int = 0
    columns: ColumnKinds = field(default_factory=ColumnKinds)  # carried through
    distinct_references: int = 0  # files that the rows to do name
    estimated_frames: int = 0  # of the rows to do
    longest_budget: int = 0  # the largest budget in frames among them
    longest_prompt_bytes: int = 0  # the most text and transcript among them
    _actions: bytearray = field(default_factory=bytearray)

    def rows(self) -> Iterator[Row | BadRow]:
        """Every row the plan covers, in manifest order; a new pass over the manifest."""
        return islice(iter(self.source), self.limit)

    def windows(self, size: int) -> Iterator[list[Row]]:
        """The rows to do, up to ``size`` at a time, without their carried-through columns.

        Inside a window rows of one voice come together, the long ones first, so that similar
        lengths prefill together and a voice's prefix is shared. The last window goes
        strictly from long to short, so the batch stays full to the end.
        """
        waiting = self.counts.todo
        todo = (
            replace(row, extra={})
            for row, action in zip(self.rows(), self._actions, strict=True)
            if action == TODO and isinstance(row, Row)
        )
        while window := list(islice(todo, size)):
            waiting -= len(window)
            window.sort(key=_voice_and_length if waiting else _length)
            yield window


def scan(
    source: Iterable[Row | BadRow],
    ledger: Ledger,
    fingerprinter: Fingerprinter,
    policy: Policy,
    out: OutputFolder,
) -> Plan:
    """Read all rows once and decide what to do with each.

    ``source`` must give the same rows each time it is iterated. Only rows that the ledger
    knows are fingerprinted, so a fresh run hashes no reference here.

    Raises :class:`UsageError` for ids that are, or on some file systems would become, the
    same file, and for references inside the output folder.
    """
    plan = Plan(source, policy.limit)
    work = _Work(plan, out)
    decide = _Decider(ledger, fingerprinter, policy, out, plan.failed_reasons)
    ids = SameIds()
    for row in plan.rows():
        ids.add(row.id)
        if row.extra:
            plan.columns.note(row.extra)
        if isinstance(row, Row):
            action = decide(row)
            if action == TODO:
                work.add(row)
        else:
            action = BAD
            _note_problems(plan, row)
        plan._actions.append(action)
    ids.check(plan.rows)
    work.finish()
    count = plan._actions.count
    plan.counts = Counts(
        todo=count(TODO),
        skipped=count(DONE) + count(CAPPED),
        failed=count(BAD) + count(FAILED),
        left=count(LEFT),
    )
    plan.skipped_capped = count(CAPPED)
    plan.valid = plan.counts.rows - count(BAD)
    return plan


class _Decider:
    """Looks a row up in the ledger and on the disk."""

    def __init__(
        self,
        ledger: Ledger,
        fingerprinter: Fingerprinter,
        policy: Policy,
        out: OutputFolder,
        failed_reasons: Counter[str],
    ) -> None:
        self._ledger = ledger
        self._fingerprinter = fingerprinter
        self._policy = policy
        self._prefix = f"{out.path}/"
        self._failed_reasons = failed_reasons

    def __call__(self, row: Row) -> int:
        if self._policy.overwrite:
            return TODO
        record = self._ledger.get(row.id)
        if self._policy.retry_failed:
            return self._retry(row, record)
        if record is None or not self._same(row, record):
            return TODO
        if record.status != "failed":
            return self._finished(record) if self._has_file(record) else TODO
        if record.passing:
            return TODO
        self._failed_reasons[record.reason] += 1
        return FAILED

    def _retry(self, row: Row, record: Record | None) -> int:
        if record is None:
            return LEFT
        if record.status != "ok":
            return TODO
        return DONE if self._same(row, record) and self._has_file(record) else LEFT

    @staticmethod
    def _finished(record: Record) -> int:
        return CAPPED if record.status == "capped" else DONE

    def _same(self, row: Row, record: Record) -> bool:
        try:
            return self._fingerprinter.fingerprint(row) == record.fingerprint
        except RowError:  # the reference cannot be read now: the run will say so
            return False

    def _has_file(self, record: Record) -> bool:
        try:
            return os.stat(self._prefix + record.file).st_size == record.bytes  # noqa: PTH116
        except (OSError, ValueError):
            return False


class _Work:
    """Sums up the rows to do for the plan."""

    def __init__(self, plan: Plan, out: OutputFolder) -> None:
        self._plan = plan
        self._out = out
        self._voices = array("q")  # a hash of the reference for each row
        self._in_output = lru_cache(4096)(self._is_in_output)

    def add(self, row: Row) -> None:
        plan = self._plan
        frames = estimate_frames(row.text)
        size = len(row.text.encode())
        reference = row.reference
        if reference is not None:
            size += len(reference.text.encode()) if reference.text else 0
            self._voices.append(hash(reference.path))
            if self._in_output(os.path.dirname(reference.path)):  # noqa: PTH120 - for speed
                raise UsageError(
                    f"line {row.line}: the reference {reference.path} lies in the output folder "
                    f"{self._out.path}, where it could be replaced"
                )
        plan.estimated_frames += frames
        budget = frame_budget_of(frames, row.max_new_tokens)
        plan.longest_budget = max(plan.longest_budget, budget)
        plan.longest_prompt_bytes = max(plan.longest_prompt_bytes, size)

    def finish(self) -> None:
        self._plan.distinct_references = len(np.unique(np.frombuffer(self._voices, np.int64)))

    def _is_in_output(self, folder: str) -> bool:
        place = Path(folder).resolve()
        ours = self._out.cache.resolve()  # clips embedded in the manifest are spooled there
        return self._out.contains(place) and not place.is_relative_to(ours)


def _note_problems(plan: Plan, row: BadRow) -> None:
    plan.failed_reasons[row.reason] += 1
    plan.problem_count += len(row.problems)
    room = PROBLEMS_KEPT - len(plan.problems)
    plan.problems.extend(row.problems[: max(room, 0)])


def _length(row: Row) -> int:
    return -len(row.text.encode())


def _voice_and_length(row: Row) -> tuple[str, str, int]:
    reference = row.reference
    if reference is None:
        return "", "", _length(row)
    return str(reference.path), reference.text or "", _length(row)
