"""Turns raw records into rows: every rule of a manifest is applied here, every error named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from fishcli.errors import UsageError
from fishcli.manifest.fields import (
    NUMBER_FIELDS,
    TEXT_FIELDS,
    Fields,
    parse_number,
    split_fields,
    stem,
)
from fishcli.manifest.ids import DerivedIds, id_problem, seed_of
from fishcli.manifest.record import Manifest, RawRecord
from fishcli.manifest.references import References
from fishcli.manifest.text import collapse, shown, text_problem, text_warnings
from fishcli.records import (
    MAX_NEW_TOKENS_LIMIT,
    SEED_LIMIT,
    TAKES_LIMIT,
    BadRow,
    Reference,
    Row,
    Sampling,
    check_range,
)


@dataclass(frozen=True, slots=True)
class RowDefaults:
    """What holds for rows that don't say it themselves (the flags of the command)."""

    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 4096
    run_seed: int = 0
    reference: Reference | None = None
    voice_pool: tuple[Reference, ...] = ()  # a voice by hash of the id
    takes: int = 1  # rows made of each record, each with a seed of its own

    def __post_init__(self) -> None:
        check_range("max_new_tokens", self.max_new_tokens, 1, MAX_NEW_TOKENS_LIMIT)
        check_range("seed", self.run_seed, 0, SEED_LIMIT)
        check_range("takes", self.takes, 1, TAKES_LIMIT)
        if self.reference and self.voice_pool:
            raise UsageError("a voice for all rows and a voice pool exclude each other")


@dataclass(frozen=True, slots=True)
class RowSource:
    """The rows of a manifest; each iteration is a pass over the file."""

    manifest: Manifest
    defaults: RowDefaults

    def __iter__(self) -> Iterator[Row | BadRow]:
        return read_rows(self.manifest, self.defaults)


def read_rows(manifest: Manifest, defaults: RowDefaults) -> Iterator[Row | BadRow]:
    """Every row of ``manifest`` in order; ``defaults.takes`` rows for each good record.

    Raises :class:`RunError` if the manifest changes under way.
    """
    return _RowReader(manifest, defaults).read()


class _Problems:
    """What is wrong with one record, each with the record's place."""

    def __init__(self, place: str, names: dict[str, str]) -> None:
        self._place = place
        self._names = names
        self.found: list[str] = []
        self.reason = ""

    def add(self, reason: str, field: str, what: str) -> None:
        """``what`` continues a sentence that begins with the field, as the manifest calls it."""
        self.reason = self.reason or reason
        self.found.append(f"{self._place}: {self._names.get(field, field)} {what}".strip())


class _RowReader:
    """One pass: what has been derived and looked up so far."""

    def __init__(self, manifest: Manifest, defaults: RowDefaults) -> None:
        self._manifest = manifest
        self._defaults = defaults
        self._references = References(manifest.folder)
        self._derived = DerivedIds()
        self._sampling = lru_cache(1024)(Sampling)

    def read(self) -> Iterator[Row | BadRow]:
        index = 0
        for record in self._manifest.records():
            for row in self._rows(record, index):
                yield row
                index += 1

    def _rows(self, record: RawRecord, index: int) -> list[Row] | list[BadRow]:
        place = f"{self._manifest.unit} {record.line}"
        if record.fields is None:
            row_id = self._derived.of({"unreadable": record.line})
            problem = f"{place}: {record.error}"
            return [BadRow(index, record.line, row_id, "bad_record", (problem,))]
        known, names, extra = split_fields(record.fields)
        problems = _Problems(place, names)
        own_id = self._own_id(known, names, problems)
        self._read_texts(known, problems)
        self._read_numbers(known, problems)
        reference = self._reference(known, problems)
        row_id = own_id or self._derived_id(known)
        if problems.found:
            found = tuple(problems.found)
            return [BadRow(index, record.line, row_id, problems.reason, found, extra)]
        return self._takes(record.line, index, row_id, known, reference, extra)

    def _own_id(self, known: Fields, names: dict[str, str], problems: _Problems) -> str | None:
        """The id the record gives itself, if it is usable."""
        value = known.pop("id", None)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            problems.add("bad_id", "id", f"is {shown(value)}: a string is expected")
            return None
        if names["id"] == "file_name":
            value = stem(value)
        problem = id_problem(value)
        if problem:
            problems.add("bad_id", "id", problem)
            return None
        return value

    def _read_texts(self, known: Fields, problems: _Problems) -> None:
        for name in TEXT_FIELDS:
            value = known.get(name)
            if value is None:
                continue
            if not isinstance(value, str):
                reason = "bad_text" if name == "text" else "bad_reference"
                problems.add(reason, name, f"is {shown(value)}: a string is expected")
            elif name in {"text", "ref_text"}:
                known[name] = collapse(value)
        text = known.get("text")
        if text is None:
            problems.add("bad_text", "text", "is missing")
        elif isinstance(text, str):
            problem = text_problem(text)
            if problem:
                problems.add("bad_text", "text", f"is wrong: {problem}")

    def _read_numbers(self, known: Fields, problems: _Problems) -> None:
        for name in NUMBER_FIELDS:
            if name in known:
                try:
                    known[name] = parse_number(
                        name, known[name], from_text=self._manifest.numbers_are_text
                    )
                except ValueError as error:
                    problems.add("bad_value", name, str(error))

    def _reference(self, known: Fields, problems: _Problems) -> Reference | None:
        """The reference the record names itself, or None."""
        audio, text, voice = known.get("ref_audio"), known.get("ref_text"), known.get("voice")
        name, found = "", None
        if voice is not None and (audio is not None or text is not None):
            problems.add("bad_reference", "voice", "excludes ref_audio and ref_text")
        elif isinstance(voice, str):
            name, found = "voice", self._references.voice(voice)
        elif isinstance(audio, str) and isinstance(text, str | None):
            name, found = "ref_audio", self._references.audio(audio, text)
        elif isinstance(text, str) and audio is None:
            problems.add("bad_reference", "ref_text", "has no ref_audio")
        if isinstance(found, str):
            problems.add("bad_reference", name, found)
            return None
        return found

    def _derived_id(self, known: Fields) -> str:
        audio = known.get("ref_audio")
        prefix = self._manifest.spool_prefix
        if prefix and isinstance(audio, str) and audio.startswith(prefix):
            # The clip's content decides, not the folder it was spooled to.
            return self._derived.of({**known, "ref_audio": audio.removeprefix(prefix)})
        return self._derived.of(known)

    def _takes(
        self,
        line: int,
        index: int,
        row_id: str,
        known: Fields,
        reference: Reference | None,
        extra: Fields,
    ) -> list[Row]:
        defaults = self._defaults
        text: str = known["text"]
        sampling = self._row_sampling(known)
        budget = known.get("max_new_tokens", defaults.max_new_tokens)
        seed: int | None = known.get("seed")
        if reference is None:
            reference = self._default_reference(row_id)
        warnings = text_warnings(text)
        rows: list[Row] = []
        for take in range(defaults.takes):
            take_id = row_id if defaults.takes == 1 else f"{row_id}-take{take + 1}"
            take_seed = (
                seed_of(defaults.run_seed, take_id) if seed is None else (seed + take) & SEED_LIMIT
            )
            rows.append(
                Row(
                    index + take,
                    line,
                    take_id,
                    text,
                    reference,
                    sampling,
                    budget,
                    take_seed,
                    extra,
                    warnings,
                )
            )
        return rows

    def _default_reference(self, row_id: str) -> Reference | None:
        """All takes of a record share a voice, so the record's own id chooses it."""
        pool = self._defaults.voice_pool
        if pool:
            return pool[seed_of(0, row_id) % len(pool)]
        return self._defaults.reference

    def _row_sampling(self, known: dict[str, Any]) -> Sampling:
        default = self._defaults.sampling
        if "temperature" in known or "top_p" in known or "top_k" in known:
            return self._sampling(
                known.get("temperature", default.temperature),
                known.get("top_p", default.top_p),
                known.get("top_k", default.top_k),
            )
        return default
