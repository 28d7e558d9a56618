"""The fields a manifest row may have: their aliases, types and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from fishcli.errors import UsageError
from fishcli.manifest.text import shown
from fishcli.records import MAX_NEW_TOKENS_LIMIT, SEED_LIMIT, Sampling, check_range

EXACT_FLOAT = 2**53  # whole numbers up to here survive being a float

TEXT_FIELDS = ("text", "ref_audio", "ref_text", "voice")
SAMPLING_FIELDS = ("temperature", "top_p", "top_k")
NUMBER_FIELDS = (*SAMPLING_FIELDS, "max_new_tokens", "seed")
WHOLE_FIELDS = frozenset(("top_k", "max_new_tokens", "seed"))

# Every name with its canonical one, and its rank: of two names for one field the lower wins.
FIELDS: dict[str, tuple[str, int]] = {
    **{name: (name, 0) for name in ("id", *TEXT_FIELDS, *NUMBER_FIELDS)},
    "utt": ("id", 1),
    "custom_id": ("id", 2),
    "file_name": ("id", 3),
    "input": ("text", 1),
    "prompt_wav": ("ref_audio", 1),
    "prompt_audio": ("ref_audio", 2),
    "prompt_text": ("ref_text", 1),
}

Fields = dict[str, Any]


def split_fields(record: Mapping[str, Any]) -> tuple[Fields, dict[str, str], Fields]:
    """``record`` as (known fields, the names the manifest uses for them, all other fields).

    Null and NaN say nothing (data frames write them for cells without a value). An alias
    that is beaten by a better name for the same field is carried through.
    """
    known: Fields = {}
    names: dict[str, str] = {}
    extra: Fields = {}
    for name, value in record.items():
        field = FIELDS.get(name)
        if field is None:
            extra[name] = value
        elif value is not None and value == value:  # noqa: PLR0124 - NaN differs from itself
            canonical, rank = field
            rival = names.get(canonical)
            if rival is None or rank < FIELDS[rival][1]:
                if rival is not None:
                    extra[rival] = known[canonical]
                known[canonical], names[canonical] = value, name
            else:
                extra[name] = value
    return known, names, extra


def stem(file_name: str) -> str:
    """``sets/a/001.wav`` → ``001``."""
    return PurePosixPath(file_name.replace("\\", "/")).stem


def parse_number(field: str, value: object, *, from_text: bool) -> int | float:
    """``value`` as the number ``field`` takes; text is read only where the format has no numbers.

    Raises ``ValueError`` with "is …: what is allowed", for whatever is not in range.
    """
    whole = field in WHOLE_FIELDS
    number = _read_number(value, whole) if from_text and isinstance(value, str) else value
    if isinstance(number, float) and whole and number.is_integer() and abs(number) <= EXACT_FLOAT:
        number = int(number)  # data frames turn a column with gaps into floats
    expected = "a whole number" if whole else "a number"
    if isinstance(number, bool) or not isinstance(number, int if whole else int | float):
        raise ValueError(f"is {shown(value)}: {expected} is expected, {_allowed(field)}")
    try:
        _check(field, number)
    except UsageError as error:
        raise ValueError(str(error).removeprefix(f"{field} ")) from error
    return number if whole else float(number)


def _read_number(value: str, whole: bool) -> int | float | str:
    try:
        return int(value) if whole else float(value)
    except ValueError:
        return value


def _check(field: str, number: float) -> None:
    """The one place that knows the ranges is :mod:`fishcli.records`; ask it."""
    if field in SAMPLING_FIELDS:
        Sampling(**{field: number})  # type: ignore[arg-type]
    elif field == "max_new_tokens":
        check_range(field, number, 1, MAX_NEW_TOKENS_LIMIT)
    else:
        check_range(field, number, 0, SEED_LIMIT)


def _allowed(field: str) -> str:
    """The allowed range of ``field`` in the words of the check itself."""
    try:
        _check(field, float("nan"))
    except UsageError as error:
        return str(error).rpartition(": ")[2]
    raise AssertionError(field)
