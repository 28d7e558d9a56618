"""The output folder: where files go, how they get there whole, and whose folder it is."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from fishcli.errors import RunError, UsageError
from fishcli.settings import Layout

RUN_FILE = "run.json"
RUN_FILE_VERSION = 1
OURS = ("metadata.jsonl", "results.parquet", "report.json", "report.html", "wavs")

_counter = itertools.count()
_host = "".join(c if c.isalnum() else "-" for c in socket.gethostname())[:32]
# In a container every start may get the same process id; this tells them apart.
_start = secrets.token_hex(4)


class OutputFolder:
    """The folder of one run and its reruns. Subfolders are made when first needed.

    ``wavs/`` audio, ``ledger/`` what is done, ``run.json`` the run-wide settings; hidden
    from whoever loads the folder as a data set: ``.cache/`` and ``.tmp/``.
    """

    def __init__(self, path: Path, layout: Layout = "flat") -> None:
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file: the output needs a folder")
        self.path = path
        self.layout = layout
        self._made: set[Path] = set()

    @property
    def cache(self) -> Path:
        """Folder for what can be made again: digests, spooled clips, encoded voices."""
        return self.path / ".cache"

    def wav_name(self, row_id: str, suffix: str) -> str:
        """The file of a row, relative to the folder, e.g. ``wavs/a1.wav``."""
        if self.layout == "flat":
            return f"wavs/{row_id}{suffix}"
        bucket = hashlib.blake2b(row_id.encode(), digest_size=1).hexdigest()
        return f"wavs/{bucket}/{row_id}{suffix}"

    def wav_path(self, row_id: str, suffix: str) -> Path:
        """The place of a row's file (``suffix`` with its dot), in a folder that exists.

        Raises :class:`RunError` if a link leads out of the output folder.
        """
        path = self.path / self.wav_name(row_id, suffix)
        self._make(path.parent)
        return path

    def temporary_path(self, suffix: str = "") -> Path:
        """A fresh name on the same file system, to be renamed to its final one when whole."""
        folder = self.path / ".tmp"
        self._make(folder)
        return folder / _temporary_name(suffix)

    def remove_leftovers(self) -> int:
        """Delete temporary files of processes of this host that are gone; how many."""
        removed = 0
        for file in self._temporaries():
            process, start, *_ = file.name.lstrip(".").removeprefix(f"{_host}.").split(".")
            if process.isdigit() and not _alive(int(process), start):
                file.unlink(missing_ok=True)
                removed += 1
        return removed

    def _temporaries(self) -> Iterator[Path]:
        """Temporary files of this host: audio, and what :func:`atomic_write` left aside."""
        yield from (self.path / ".tmp").glob(f"{_host}.*.*")
        yield from self.path.glob(f".{_host}.*.*")
        yield from self.cache.rglob(f".{_host}.*.*")

    def refuse_input(self, manifest: Path) -> None:
        """Raise :class:`UsageError` if the run would write where its manifest lies."""
        for place in (manifest.absolute().parent.resolve(), manifest.resolve()):
            if self.contains(place):
                raise UsageError(
                    f"the output folder {self.path} holds the manifest {manifest}: "
                    "choose a folder of its own"
                )

    def contains(self, path: Path) -> bool:
        """Whether ``path`` (resolved) lies in, or is, this folder."""
        return path.is_relative_to(self.path.resolve())

    def check(self, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Raise what :meth:`claim` would, and change nothing."""
        record = self.path / RUN_FILE
        if overwrite:
            return
        if not record.exists():
            self._refuse_strangers()
        elif changed := _changes(_read_settings(record), _as_read(settings)):
            raise UsageError(
                f"{self.path} was made with other settings: {'; '.join(changed)}. "
                "Choose another --out, or --overwrite to replace its files"
            )

    def claim(self, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Make the folder this run's, or check that it is.

        The first run writes down ``settings`` (values that JSON has). A rerun with others
        raises :class:`UsageError` naming each with both values, unless ``overwrite``.
        """
        self.check(settings, overwrite=overwrite)
        self._make(self.path)
        record = self.path / RUN_FILE
        document = {"version": RUN_FILE_VERSION, "settings": _as_read(settings)}
        data = msgspec.json.format(msgspec.json.encode(document), indent=2)
        if not record.exists() and _write_new(record, data):
            return
        self.check(settings, overwrite=overwrite)  # another process may have been first
        if _changes(_read_settings(record), _as_read(settings)):
            atomic_write(record, data)

    def settings(self) -> dict[str, Any] | None:
        """The run-wide settings written down here, or None before the first run."""
        record = self.path / RUN_FILE
        return _read_settings(record) if record.exists() else None

    def _refuse_strangers(self) -> None:
        found = [name for name in OURS if (self.path / name).exists()]
        if found:
            raise UsageError(
                f"{self.path} holds {', '.join(found)} but no {RUN_FILE}, so another tool made "
                "it. Choose another --out, or --overwrite to replace its files"
            )

    def _make(self, folder: Path) -> None:
        if folder in self._made:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {folder}: {error.strerror}") from error
        if not self.contains(folder.resolve()):
            raise RunError(f"{folder} is a link that leads out of the output folder {self.path}")
        self._made.add(folder)


def atomic_write(
    path: Path, content: bytes | Callable[[IO[bytes]], object], *, durable: bool = True
) -> None:
    """Put a whole file at ``path`` or leave what was there: write aside, fsync, rename.

    ``content`` is the bytes, or a function that writes them to the open file. With
    ``durable`` the file survives a power cut once this returns. Raises :class:`OSError`.
    """
    temporary = path.with_name(f".{_temporary_name('.tmp')}")
    try:
        with temporary.open("xb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary_name(suffix: str) -> str:
    return f"{_host}.{os.getpid()}.{_start}.{next(_counter)}{suffix}"


def _alive(process: int, start: str) -> bool:
    """Whether the process that made a temporary file may still be at work."""
    if process == os.getpid():
        return start == _start
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _write_new(path: Path, data: bytes) -> bool:
    """Write ``path`` whole unless it exists; False if another process was first."""
    temporary = path.with_name(f".{_temporary_name('.tmp')}")
    atomic_write(temporary, data)
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    except OSError:  # a file system without links: the last writer wins
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    fsync_folder(path.parent)
    return True


def _read_settings(record: Path) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(record.read_bytes(), type=dict[str, Any])
        version, settings = document["version"], document["settings"]
    except (OSError, msgspec.MsgspecError, KeyError) as error:
        raise UsageError(f"{record} cannot be read: {error}") from error
    if version != RUN_FILE_VERSION or not isinstance(settings, dict):
        raise UsageError(f"{record} has version {version!r}: this fishcli reads {RUN_FILE_VERSION}")
    return settings


def _as_read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` as they come back from the file."""
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(settings)))
    return read


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    names = sorted(old.keys() | new.keys())
    return [
        f"{name} was {old.get(name)!r}, now {new.get(name)!r}"
        for name in names
        if old.get(name) != new.get(name)
    ]
