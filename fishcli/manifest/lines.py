"""Manifests of one record a line: JSON Lines, and the ``meta.lst`` of seed-tts-eval."""

from __future__ import annotations

from abc import abstractmethod
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


class _Lines(Manifest):
    """One record a line; a line that holds none costs no other."""

    @abstractmethod
    def _fields(self, line: bytes) -> dict[str, Any]:
        """The fields of the record in ``line``; raises ``ValueError`` saying why it holds none."""

    def _read(self) -> Iterator[RawRecord]:
        for number, line in _lines(self.path):
            if line is None:
                record = RawRecord(number, None, TOO_LONG)
            else:
                try:
                    record = RawRecord(number, self._fields(line))
                except ValueError as error:
                    record = RawRecord(number, None, str(error))
            yield record


class JsonLines(_Lines):
    """One JSON object a line. NaN, other JSON values and torn lines are record errors."""

    def _fields(self, line: bytes) -> dict[str, Any]:
        try:
            return _decode(line)
        except msgspec.ValidationError as error:
            raise ValueError(f"not a JSON object: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"not valid JSON: {error}") from error
        except RecursionError:
            raise ValueError("not valid JSON: nested too deeply") from None


class SeedTtsList(_Lines):
    """``utt|prompt_text|prompt_wav|text``, with an optional fifth field, ``infer_wav``."""

    numbers_are_text = True

    def _fields(self, line: bytes) -> dict[str, Any]:
        try:
            values = line.decode().strip("\r\n").split("|")
        except UnicodeDecodeError:
            raise ValueError("not valid UTF-8") from None
        if len(values) not in {4, 5}:
            expected = "|".join(LST_FIELDS[:4])
            raise ValueError(f"{len(values)} fields: {expected} is expected")
        return dict(zip(LST_FIELDS, values, strict=False))


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
