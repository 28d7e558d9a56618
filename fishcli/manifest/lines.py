"""Manifests of one record a line: JSON Lines, and the ``meta.lst`` of seed-tts-eval."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from fishcli.manifest.record import Manifest, RawRecord

LINE_LIMIT = 16 * 2**20  # bytes; a longer "line" is another kind of file
TOO_LONG = f"longer than {LINE_LIMIT // 2**20} MiB: one record a line is expected"
BOM = b"\xef\xbb\xbf"

LST_FIELDS = ("utt", "prompt_text", "prompt_wav", "text", "infer_wav")

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class JsonLines(Manifest):
    """One JSON object a line. NaN, other JSON values and torn lines are record errors."""

    def _read(self) -> Iterator[RawRecord]:
        for number, line in _lines(self.path):
            if line is None:
                yield RawRecord(number, None, TOO_LONG)
                continue
            try:
                record = RawRecord(number, _decode(line))
            except msgspec.ValidationError as error:
                record = RawRecord(number, None, f"not a JSON object: {error}")
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                record = RawRecord(number, None, f"not valid JSON: {error}")
            except RecursionError:
                record = RawRecord(number, None, "not valid JSON: nested too deeply")
            yield record


class SeedTtsList(Manifest):
    """``utt|prompt_text|prompt_wav|text``, with an optional fifth field, ``infer_wav``."""

    numbers_are_text = True

    def _read(self) -> Iterator[RawRecord]:
        for number, line in _lines(self.path):
            if line is None:
                yield RawRecord(number, None, TOO_LONG)
                continue
            try:
                values = line.decode().strip("\r\n").split("|")
            except UnicodeDecodeError:
                yield RawRecord(number, None, "not valid UTF-8")
                continue
            if len(values) not in {4, 5}:
                expected = "|".join(LST_FIELDS[:4])
                yield RawRecord(number, None, f"{len(values)} fields: {expected} is expected")
                continue
            yield RawRecord(number, dict(zip(LST_FIELDS, values, strict=False)))


def _lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines that are not blank, without a byte order mark; None for one too long."""
    with path.open("rb", buffering=2**20) as file:
        if file.read(len(BOM)) != BOM:
            file.seek(0)
        for number, line in enumerate(iter(partial(file.readline, LINE_LIMIT), b""), start=1):
            if len(line) == LINE_LIMIT and not line.endswith(b"\n"):
                _skip_line(file)
                yield number, None
            elif not line.isspace():
                yield number, line


def _skip_line(file: IO[bytes]) -> None:
    for rest in iter(partial(file.readline, LINE_LIMIT), b""):
        if rest.endswith(b"\n"):
            return
