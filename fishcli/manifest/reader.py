"""Opens a manifest in any of the formats fishcli reads."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO

from fishcli.errors import RunError, UsageError
from fishcli.manifest.csvfile import CsvFile
from fishcli.manifest.lines import JsonLines, SeedTtsList
from fishcli.manifest.parquet import ParquetFile
from fishcli.manifest.record import Manifest, RawRecord

__all__ = ["STDIN", "Manifest", "RawRecord", "open_manifest"]

STDIN = "-"
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json-lines")
SUFFIXES = (*JSON_SUFFIXES, ".parquet", ".csv", ".tsv", ".lst")


def open_manifest(path: str | Path, *, spool_dir: Path | None = None) -> Manifest:
    """The manifest at ``path``, its format known by its suffix.

    ``-`` (or a pipe) is JSON Lines, spooled to a temporary file because planning and the
    run each read it. Clips embedded in Parquet go to ``spool_dir``, by default a temporary
    folder that ends with the manifest. Use as a context manager, or call ``close``.

    Raises :class:`UsageError` for a file that is missing, a folder, or of no known format.
    """
    if str(path) == STDIN:
        return SpooledJsonLines(sys.stdin.buffer, "standard input")
    file = Path(path)
    try:
        if file.is_dir():
            raise UsageError(f"{path} is a folder: a manifest file is expected")
        if file.is_fifo():
            with file.open("rb") as pipe:
                return SpooledJsonLines(pipe, str(path))
        suffix = file.suffix.lower()
        if suffix not in SUFFIXES:
            raise UsageError(
                f"{path}: unknown kind of manifest {suffix!r}; known are {', '.join(SUFFIXES)}"
            )
        _check_readable(file)
        return _open(file, suffix, spool_dir)
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


def _open(file: Path, suffix: str, spool_dir: Path | None) -> Manifest:
    folder = file.absolute().parent
    if suffix in JSON_SUFFIXES:
        return JsonLines(file, folder)
    if suffix == ".lst":
        return SeedTtsList(file, folder)
    if suffix == ".parquet":
        return ParquetFile(file, folder, spool_dir)
    return CsvFile(file, folder, tabs=suffix == ".tsv")


def _check_readable(file: Path) -> None:
    with file.open("rb") as opened:
        if opened.read(2) in {b"\xff\xfe", b"\xfe\xff"}:
            raise UsageError(f"{file} is UTF-16: save it as UTF-8")


class SpooledJsonLines(JsonLines):
    """JSON Lines from a stream that can be read once; relative paths are the caller's."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._copy = tempfile.NamedTemporaryFile(prefix="fishcli-", suffix=".jsonl")  # noqa: SIM115
        try:
            shutil.copyfileobj(stream, self._copy)
            self._copy.flush()
        except OSError as error:
            self._copy.close()
            raise RunError(f"cannot copy {name}: {error.strerror or error}") from error
        super().__init__(Path(self._copy.name), Path.cwd())
        self.name = name

    def close(self) -> None:
        self._copy.close()
