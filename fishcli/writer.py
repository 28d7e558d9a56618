"""Writer threads: PCM becomes files, files become records.

The order that nothing can break: write under a temporary name, fsync, rename, then append
to the ledger. So a file under its final name is always whole, and a recorded row always
has its file. Files that wait together share the cost of syncing.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fishcli.audio import write_audio
from fishcli.channel import Channel, ChannelClosedError
from fishcli.decoder import Pcm
from fishcli.errors import RunError
from fishcli.ledger import Ledger, Record
from fishcli.outdir import OutputFolder, fsync_folder

JOBS_IN_FLIGHT = 128  # rows waiting to be written; a full channel holds the decoder back
GROUP_ROWS = 32  # files synced together
THREADS = 2


@dataclass(frozen=True, slots=True, eq=False)
class WriteJob:
    """A record to append, and the audio to write first (None: the row has no file).

    The writer fills the record's ``file``, ``bytes`` and ``time``.
    """

    record: Record
    pcm: Pcm | None


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Sample rate in Hz, container (``wav`` or ``flac``) and libsndfile subtype."""

    sample_rate: int
    container: str
    subtype: str


class WriterPool:
    """``THREADS`` threads that write jobs in groups.

    ``on_written`` is called in a writer thread with the records just appended. An error
    is given to ``on_error`` as :class:`RunError` and its thread takes nothing more.
    """

    def __init__(
        self,
        out: OutputFolder,
        ledger: Ledger,
        file_format: FileFormat,
        on_written: Callable[[Sequence[Record]], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._out = out
        self._ledger = ledger
        self._format = file_format
        self._suffix = f".{file_format.container}"
        self._on_written = on_written
        self._on_error = on_error
        self._channel: Channel[WriteJob] = Channel(JOBS_IN_FLIGHT)
        self._threads = [
            threading.Thread(target=self._run, name=f"writer-{n}", daemon=True)
            for n in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, job: WriteJob) -> None:
        """Queue a row; waits while JOBS_IN_FLIGHT rows are waiting."""
        self._channel.put(job)

    def close(self) -> None:
        """No more jobs will come; what is queued is still written, then the threads end."""
        self._channel.close()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the threads, ``timeout`` seconds at most; whether they have ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def fail(self, error: BaseException) -> None:
        """Drop what is queued; :meth:`put` raises ``error`` from now on."""
        self._channel.fail(error)

    def _run(self) -> None:
        try:
            for job in self._channel:
                self._write_group(self._more([job]))
        except OSError as error:
            self._on_error(_disk_error(error))
        except BaseException as error:  # noqa: BLE001 - handed to the pipeline, which raises it
            self._on_error(error)

    def _more(self, jobs: list[WriteJob]) -> list[WriteJob]:
        """Add what is waiting already, without waiting for more."""
        try:
            while len(jobs) < GROUP_ROWS and (job := self._channel.get_nowait()) is not None:
                jobs.append(job)
        except ChannelClosedError:
            pass
        return jobs

    def _write_group(self, jobs: list[WriteJob]) -> None:
        """Whole files under temporary names, then final names, then the records."""
        paths = [
            None if job.pcm is None else self._out.temporary_path(self._suffix) for job in jobs
        ]
        try:
            for job, path in zip(jobs, paths, strict=True):
                self._write(job.pcm, path)
            for path in paths:
                _sync(path)
            records = self._place(jobs, paths)
        except BaseException:
            for path in paths:  # what is half done shall not fill the disk
                if path is not None:
                    path.unlink(missing_ok=True)
            raise
        self._ledger.append(records)
        self._on_written(records)

    def _write(self, pcm: Pcm | None, path: Path | None) -> None:
        if pcm is not None and path is not None:
            how = self._format
            write_audio(path, pcm, how.sample_rate, how.container, how.subtype)

    def _place(self, jobs: list[WriteJob], paths: list[Path | None]) -> list[Record]:
        """Give the files their final names, durably; the records of the rows."""
        records, folders = [], set()
        for job, path in zip(jobs, paths, strict=True):
            target = self._out.wav_path(job.record.id, self._suffix)
            records.append(self._settle(job.record, path, target))
            folders.add(target.parent)
        for folder in folders:
            fsync_folder(folder)
        return records

    def _settle(self, record: Record, path: Path | None, target: Path) -> Record:
        """Give the file its final name.

        A row that now has none loses its old file, unless the cause may pass: then the old
        one may still be what the row says, and the next run knows.
        """
        now = time.time()
        if path is None:
            if not record.passing:
                target.unlink(missing_ok=True)
            return msgspec.structs.replace(record, time=now)
        size = path.stat().st_size
        path.replace(target)
        name = self._out.wav_name(record.id, self._suffix)
        return msgspec.structs.replace(record, file=name, bytes=size, time=now)


def _sync(path: Path | None) -> None:
    if path is not None:
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _disk_error(error: OSError) -> RunError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(
            "the disk is full: what was finished is safe, free some space and run the same "
            "command again"
        )
    return RunError(f"cannot write the output: {error}")
