"""The ledger: what is appended is there, whatever happened to the file."""

import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fishcli.errors import RunError, UsageError
from fishcli.ledger import Ledger, Record


def record(row_id: str, **changes: object) -> Record:
    values: dict[str, object] = {"fingerprint": "f", "status": "ok", "time": 1.0, **changes}
    return Record(row_id, **values)  # type: ignore[arg-type]


def ids(out: Path) -> set[str]:
    with Ledger.read(out) as ledger:
        return {found.id for found in ledger}


def test_records_come_back_in_the_same_run_and_in_the_next(tmp_path: Path) -> None:
    whole = record(
        "a",
        status="capped",
        reason="r",
        message="m ü",
        passing=True,
        file="wavs/a.wav",
        bytes=10,
        frames=3,
        duration_s=0.5,
        finish_reason="length",
        seed=2**63 - 1,
        model="mini",
        rtf=0.1,
        ttfp_s=0.2,
        wall_s=0.3,
        prompt_tokens=4,
        flags=("x", "y"),
    )
    with Ledger.open(tmp_path) as ledger:
        assert ledger.get("a") is None
        ledger.append([whole, record("b")])
        ledger.append([])
        assert ledger.get("a") == whole
        assert len(ledger) == 2
    with Ledger.open(tmp_path) as ledger:
        assert list(ledger) == [whole, record("b")]
        assert "b" in ledger
        assert "c" not in ledger


def test_the_last_record_of_an_id_counts(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        ledger.append([record("a", seed=1, time=9.0), record("b")])
        ledger.append([record("a", seed=2, time=1.0)])  # the clock was set back
        assert [found.seed for found in ledger] == [2, 0]
    with Ledger.read(tmp_path) as ledger:
        assert [found.seed for found in ledger] == [2, 0]


def test_across_writers_the_younger_record_counts(tmp_path: Path) -> None:
    for writer, when in (("shard-0", 5.0), ("shard-1", 3.0), ("main", 4.0)):
        with Ledger.open(tmp_path, writer) as ledger:
            ledger.append([record("a", time=when, model=writer), record(writer)])
    with Ledger.read(tmp_path) as ledger:
        found = ledger.get("a")
        assert found is not None
        assert found.model == "shard-0"
        assert len(ledger) == 4


def test_a_second_run_is_refused_while_the_first_writes(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        ledger.append([record("a")])
        with pytest.raises(UsageError, match="another run is writing"):
            Ledger.open(tmp_path)
        Ledger.open(tmp_path, "shard-1").close()  # another writer may
        assert ids(tmp_path) == {"a"}  # and so may a reader
        ledger.append([record("b")])
    Ledger.open(tmp_path).close()


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from fishcli.ledger import *\n"
        "l = Ledger.open(pathlib.Path(sys.argv[1])); l.append([Record('a', 'f', 'ok')])\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(UsageError, match="another run"):
            Ledger.open(tmp_path)
        process.kill()
    with Ledger.open(tmp_path) as ledger:
        assert "a" in ledger


def test_a_torn_last_line_is_tolerated_and_the_next_record_starts_a_new_one(
    tmp_path: Path,
) -> None:
    with Ledger.open(tmp_path) as ledger:
        ledger.append([record("a"), record("b")])
    file = tmp_path / "ledger" / "main.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    with Ledger.open(tmp_path) as ledger:
        assert [found.id for found in ledger] == ["a"]
        assert ledger.damaged == 1
        ledger.append([record("c")])
        assert ledger.get("c") == record("c")
    with Ledger.read(tmp_path) as ledger:
        assert {found.id for found in ledger} == {"a", "c"}
        assert ledger.damaged == 1


def test_a_line_nested_too_deeply_is_garbage_too(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    good = msgspec.json.encode(record("a"))
    lines = [good, b'{"x":' + b"[" * 100_000, msgspec.json.encode(record("b")), b""]
    (tmp_path / "ledger" / "main.jsonl").write_bytes(b"\n".join(lines))
    with Ledger.open(tmp_path) as ledger:
        assert {found.id for found in ledger} == {"a", "b"}
        assert ledger.damaged == 1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.binary(max_size=40).map(lambda b: b.replace(b"\n", b" "))
        | st.sampled_from([b'{"id": 3}', b'{"id": "a", "fingerprint": "f", "status": "bad"}']),
        max_size=5,
    ),
    st.integers(0, 3),
    st.integers(0, 30),
)
def test_garbage_lines_are_counted_and_never_lose_a_record(
    tmp_path_factory: pytest.TempPathFactory, garbage: list[bytes], place: int, cut: int
) -> None:
    out = tmp_path_factory.mktemp("any")
    good = [msgspec.json.encode(record(f"r{n}")) for n in range(3)]
    lines = [*good[:place], *garbage, *good[place:]]
    (out / "ledger").mkdir()
    (out / "ledger" / "main.jsonl").write_bytes(b"\n".join(lines) + b"\n" + good[0][:cut])
    with Ledger.open(out) as ledger:
        assert {found.id for found in ledger} == {"r0", "r1", "r2"}
        torn = bool(good[0][:cut])
        assert ledger.damaged == sum(bool(line.strip()) for line in garbage) + torn
        ledger.append([record("new")])
    assert ids(out) == {"r0", "r1", "r2", "new"}


def test_many_threads_append_without_losing_a_record(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:

        def work(worker: int) -> None:
            for n in range(30):
                ledger.append([record(f"{worker}-{n}-{k}", seed=worker) for k in range(3)])
                found = ledger.get(f"{worker}-{n}-2")
                assert found is not None
                assert found.seed == worker

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ledger) == 540
    assert len(ids(tmp_path)) == 540


def test_a_full_disk_is_one_clear_error_and_leaves_whole_lines(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the write stops half way."""
    code = (
        "import sys, pathlib, resource, signal; from fishcli.ledger import *\n"
        "from fishcli.errors import RunError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "l = Ledger.open(pathlib.Path(sys.argv[1])); l.append([Record('a', 'f', 'ok')])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.RLIM_INFINITY))\n"
        "try:\n  l.append([Record('b', 'f', 'failed', message='x' * 200)])\n"
        "except RunError as e: print(e)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "l.append([Record('c', 'f', 'ok')])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "cannot write the ledger" in done.stdout
    with Ledger.read(tmp_path) as ledger:
        assert [found.id for found in ledger] == ["a", "c"]
        assert ledger.damaged == 0


def test_kill_at_any_moment_loses_nothing_that_was_reported(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from fishcli.ledger import *\n"
        "l = Ledger.open(pathlib.Path(sys.argv[1])); n = len(l)\n"
        "while True:\n"
        "  l.append([Record(f'{n}', 'f', 'ok', message='x' * 5000)])\n"
        "  print(n, flush=True); n += 1"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    for _ in range(5):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.05)
            process.kill()
            said = process.stdout.read().split()
        known = ids(tmp_path)
        assert {f"{n}" for n in said if n.isdigit()} <= known


def test_an_empty_or_missing_folder_is_an_empty_ledger(tmp_path: Path) -> None:
    assert ids(tmp_path / "none") == set()
    assert not (tmp_path / "none").exists()


def test_a_ledger_opened_to_read_cannot_write(tmp_path: Path) -> None:
    with Ledger.read(tmp_path) as ledger, pytest.raises(AssertionError):
        ledger.append([record("a")])


def test_a_file_where_the_folder_should_be_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "ledger").touch()
    with pytest.raises(RunError, match="cannot open the ledger"):
        Ledger.open(tmp_path)


def test_memory_holds_places_not_records(tmp_path: Path) -> None:
    line = msgspec.json.encode(record("ID", file="wavs/ID.wav", message="x" * 1000)).decode()
    (tmp_path / "ledger").mkdir()
    with (tmp_path / "ledger" / "main.jsonl").open("w") as file:
        file.writelines(line.replace("ID", f"row-{n}") + "\n" for n in range(10_000))
    tracemalloc.start()
    with Ledger.read(tmp_path) as ledger:
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 10_000 * 250  # bytes
        found = ledger.get("row-9999")
        assert found is not None
        assert found.file == "wavs/row-9999.wav"
