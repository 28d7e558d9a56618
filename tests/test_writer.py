"""Files are whole, then recorded; a disk that refuses says so and keeps no rubbish."""

import errno
import os
import threading
import time

import numpy as np
import pytest
import soundfile

from fishcli import writer
from fishcli.errors import RunError
from fishcli.ledger import Ledger, Record
from fishcli.outdir import OutputFolder
from fishcli.writer import FileFormat, WriteJob, WriterPool

WAV = FileFormat(44100, "wav", "PCM_16")


def job(row_id, samples=10, status="ok"):
    record = Record(row_id, "print", status)
    return WriteJob(record, None if samples is None else np.arange(samples, dtype=np.int16))


class Pool:
    """A pool on a folder, and what it told."""

    def __init__(self, folder, file_format=WAV):
        self.out = OutputFolder(folder)
        self.ledger = Ledger.open(folder)
        self.written, self.errors, self.failed = [], [], threading.Event()
        self.pool = WriterPool(self.out, self.ledger, file_format, self.written.extend, self._fail)

    def _fail(self, error):
        self.errors.append(error)
        self.pool.fail(error)
        self.failed.set()

    def write(self, *jobs):
        for each in jobs:
            self.pool.put(each)
        self.pool.close()
        assert self.pool.join(20.0)
        return self

    def temporaries(self):
        return list((self.out.path / ".tmp").glob("*"))


@pytest.fixture
def pool(tmp_path):
    made = Pool(tmp_path / "out")
    yield made
    made.pool.close()
    made.ledger.close()


def test_a_file_is_whole_and_its_record_complete(pool):
    before = time.time()
    pool.write(*(job(f"r{n}", 100 + n) for n in range(50)))
    assert len(pool.written) == 50
    assert not pool.temporaries()
    for n in range(50):
        record = pool.ledger.get(f"r{n}")
        path = pool.out.path / record.file
        assert (record.file, record.bytes) == (f"wavs/r{n}.wav", path.stat().st_size)
        assert record.time >= before
        samples, rate = soundfile.read(path, dtype="int16")
        assert rate == 44100
        assert samples.tolist() == list(range(100 + n))


def test_a_row_that_fails_now_loses_the_file_it_had(pool):
    pool.out.wav_path("r", ".wav").write_bytes(b"old")
    pool.write(job("r", None, "failed"))
    assert not (pool.out.path / "wavs" / "r.wav").exists()
    assert pool.ledger.get("r").file == ""


def test_a_row_that_fails_in_passing_keeps_the_file_it_had(pool):
    away = Record("a", "", "failed", reason="missing_audio", passing=True)
    pool.write(job("a"), WriteJob(away, None))
    assert pool.out.wav_path("a", ".wav").exists()


def test_data_is_synced_before_its_name_and_its_name_before_its_record(pool, monkeypatch):
    steps = []

    def telling(name, inner):
        def act(*args, **kwargs):
            steps.append(name)
            return inner(*args, **kwargs)

        return act

    for name in ("write_audio", "_sync", "fsync_folder"):
        monkeypatch.setattr(writer, name, telling(name, getattr(writer, name)))
    monkeypatch.setattr(writer.Path, "replace", telling("rename", writer.Path.replace))
    monkeypatch.setattr(Ledger, "append", telling("record", Ledger.append))
    pool.write(job("r"))
    assert steps == ["write_audio", "_sync", "rename", "fsync_folder", "record"]


def test_files_that_wait_together_share_a_sync(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "THREADS", 1)
    syncs, groups = [], []
    monkeypatch.setattr(writer, "fsync_folder", syncs.append)
    append = Ledger.append
    gate = threading.Event()

    def slow(ledger, records):
        groups.append(len(records))
        gate.wait(20.0)
        append(ledger, records)

    monkeypatch.setattr(Ledger, "append", slow)
    pool = Pool(tmp_path / "out")
    for number in range(writer.GROUP_ROWS + 9):
        pool.pool.put(job(f"r{number}"))
    gate.set()
    pool.write()
    assert sum(groups) == writer.GROUP_ROWS + 9
    assert max(groups) <= writer.GROUP_ROWS
    assert len(groups) == len(syncs) <= 4
    pool.ledger.close()


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EIO, "cannot write the output: .*Input/output error"),
    ],
)
@pytest.mark.parametrize("where", ["write_audio", "_sync", "fsync_folder"])
def test_a_disk_that_refuses_is_told_once_and_leaves_no_rubbish(
    pool, monkeypatch, number, message, where
):
    def refuse(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(writer, where, refuse)
    pool.pool.put(job("r"))
    assert pool.failed.wait(20.0)
    assert pool.pool.join(20.0)
    assert isinstance(pool.errors[0], RunError)
    with pytest.raises(RunError, match=message):
        pool.pool.put(job("s"))
    assert not pool.temporaries()
    assert pool.written == [] and len(pool.ledger) == 0


def test_what_was_written_of_a_torn_file_is_removed(pool, monkeypatch):
    def torn(path, *_):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(writer, "write_audio", torn)
    pool.pool.put(job("r"))
    assert pool.failed.wait(20.0)
    assert pool.pool.join(20.0)
    assert not pool.temporaries()
    assert not list(pool.out.path.glob("wavs/*"))


def test_who_waits_at_a_full_pool_is_woken_by_its_error(pool, monkeypatch):
    monkeypatch.setattr(pool.pool._channel, "_capacity", 1)
    gate, woken = threading.Event(), []

    def stuck(*_args):
        gate.wait(20.0)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(writer, "write_audio", stuck)

    def put_many():
        try:
            for number in range(50):
                pool.pool.put(job(f"r{number}"))
        except RunError as error:
            woken.append(error)

    putting = threading.Thread(target=put_many)
    putting.start()
    time.sleep(0.2)
    assert putting.is_alive()
    gate.set()
    putting.join(20.0)
    assert woken and not putting.is_alive()
