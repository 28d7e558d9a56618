"""The output folder: names, whole files, settings that must not change, no input inside."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import msgspec
import pytest

from fishcli import outdir
from fishcli.errors import RunError, UsageError
from fishcli.outdir import OutputFolder, atomic_write


def test_the_two_layouts(tmp_path: Path) -> None:
    assert OutputFolder(tmp_path).wav_path("a1", ".wav") == tmp_path / "wavs" / "a1.wav"
    hashed = OutputFolder(tmp_path, "hashed")
    path = hashed.wav_path("a1", ".flac")
    assert path.parent.is_dir()
    assert path.relative_to(tmp_path).as_posix() == hashed.wav_name("a1", ".flac")
    assert [len(part) for part in path.relative_to(tmp_path).parts] == [4, 2, 7]
    assert len({hashed.wav_name(f"{n}", ".wav")[:7] for n in range(2000)}) == 256


def test_folders_are_made_when_first_needed(tmp_path: Path) -> None:
    out = OutputFolder(tmp_path / "a" / "out")
    out.refuse_input(tmp_path / "m.jsonl")
    assert not (tmp_path / "a").exists()
    out.wav_path("x", ".wav").write_bytes(b"x")
    assert (tmp_path / "a" / "out" / "wavs" / "x.wav").exists()


def test_a_file_is_no_output_folder(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(UsageError, match="is a file"):
        OutputFolder(tmp_path / "out")
    with pytest.raises(RunError, match="cannot make"):
        OutputFolder(tmp_path / "out" / "deeper").wav_path("x", ".wav")


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "wavs").symlink_to(tmp_path / "outside")
    with pytest.raises(RunError, match="leads out"):
        OutputFolder(tmp_path / "out").wav_path("x", ".wav")


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    OutputFolder(tmp_path / "out").wav_path("x", ".wav").write_bytes(b"x")
    assert (tmp_path / "disk" / "wavs" / "x.wav").exists()


def test_a_final_name_that_is_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"keep")
    out = OutputFolder(tmp_path / "out")
    path = out.wav_path("x", ".wav")
    path.symlink_to(victim)
    atomic_write(path, b"new")
    assert victim.read_bytes() == b"keep"
    assert path.read_bytes() == b"new"
    assert not path.is_symlink()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "f"
    atomic_write(path, b"one")

    def fail(file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        atomic_write(path, fail)
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
    atomic_write(path, lambda file: file.write(b"two"))
    assert path.read_bytes() == b"two"


def test_temporary_names_are_fresh_and_those_of_dead_processes_are_removed(
    tmp_path: Path,
) -> None:
    out = OutputFolder(tmp_path)
    assert out.remove_leftovers() == 0
    mine = out.temporary_path(".wav")
    mine.write_bytes(b"x")
    assert out.temporary_path(".wav") != mine
    assert mine.stat().st_dev == tmp_path.stat().st_dev
    code = (
        "import sys, pathlib; from fishcli.outdir import OutputFolder\n"
        "OutputFolder(pathlib.Path(sys.argv[1])).temporary_path('.wav').write_bytes(b'x')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    (mine.parent / "other-host.1.2.wav").touch()
    assert out.remove_leftovers() == 1
    assert mine.exists()


@pytest.mark.parametrize("folder", [".", ".cache", ".cache/clips"])
def test_files_put_aside_by_a_killed_process_are_removed(tmp_path: Path, folder: str) -> None:
    place = tmp_path / folder
    place.mkdir(parents=True, exist_ok=True)
    code = (
        "import os, sys, pathlib; from fishcli.outdir import atomic_write\n"
        "atomic_write(pathlib.Path(sys.argv[1]) / 'f', lambda file: os.kill(os.getpid(), 9))"
    )
    subprocess.run([sys.executable, "-c", code, str(place)], check=False)
    before = set(place.glob(".*.tmp"))
    assert len(before) == 1
    others = place / ".other-host.1.2.3.tmp"
    others.touch()
    assert OutputFolder(tmp_path).remove_leftovers() == 1
    assert set(place.glob(".*.tmp")) == {others}


def test_a_process_that_had_our_number_before_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, where every start of the command is process 1."""
    out = OutputFolder(tmp_path)
    before = out.temporary_path(".wav")
    before.touch()
    monkeypatch.setattr(outdir, "_start", "another")
    mine = out.temporary_path(".wav")
    mine.touch()
    assert out.remove_leftovers() == 1
    assert (before.exists(), mine.exists()) == (False, True)


def test_a_rerun_with_the_same_settings_is_let_in(tmp_path: Path) -> None:
    settings = {"model": "mini", "top_p": 0.8, "pair": (1, 2), "none": None}
    out = OutputFolder(tmp_path / "out")
    assert out.settings() is None
    out.claim(settings)
    out.claim(dict(reversed(settings.items())))
    assert OutputFolder(tmp_path / "out").settings() == {**settings, "pair": [1, 2]}


def test_other_settings_are_refused_by_name_with_both_values(tmp_path: Path) -> None:
    out = OutputFolder(tmp_path)
    out.claim({"model": "s2-pro", "seed": 0, "gone": 1})
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(UsageError) as caught:
        out.claim({"model": "mini", "seed": 0, "new": True})
    message = str(caught.value)
    for words in ("model was 's2-pro', now 'mini'", "gone was 1", "new was None", "--overwrite"):
        assert words in message
    assert "seed" not in message
    assert (tmp_path / "run.json").read_bytes() == before


def test_overwrite_takes_the_new_settings(tmp_path: Path) -> None:
    out = OutputFolder(tmp_path)
    out.claim({"model": "s2-pro"})
    out.claim({"model": "mini"}, overwrite=True)
    out.claim({"model": "mini"})


def test_of_two_first_runs_one_decides(tmp_path: Path) -> None:
    refused: list[UsageError] = []
    start = threading.Barrier(8)

    def run(model: int) -> None:
        start.wait()
        try:
            OutputFolder(tmp_path).claim({"model": model})
        except UsageError as error:
            refused.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 99, "settings": {}}']
)
def test_a_run_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"run\.json"):
        OutputFolder(tmp_path).claim({})


def test_a_data_set_of_another_tool_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "metadata.jsonl").touch()
    with pytest.raises(UsageError, match=r"holds metadata\.jsonl"):
        OutputFolder(tmp_path).claim({})
    OutputFolder(tmp_path).claim({}, overwrite=True)


def test_the_output_inside_or_equal_to_the_input_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "in" / "deep"
    inner.mkdir(parents=True)
    manifest = inner / "m.jsonl"
    manifest.touch()
    for wrong in (inner, tmp_path / "in", tmp_path, inner / ".." / "deep"):
        with pytest.raises(UsageError, match="holds the manifest"):
            OutputFolder(wrong).refuse_input(manifest)
    link = tmp_path / "link"
    link.symlink_to(inner)
    with pytest.raises(UsageError, match="holds the manifest"):
        OutputFolder(link).refuse_input(manifest)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "m.jsonl").symlink_to(manifest)
    for wrong in (elsewhere, inner):  # the link's folder, and the file's
        with pytest.raises(UsageError, match="holds the manifest"):
            OutputFolder(wrong).refuse_input(elsewhere / "m.jsonl")


def test_the_commands_people_type_are_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples").mkdir()
    for manifest in ("samples/manifest.jsonl", "manifest.jsonl"):
        Path(manifest).touch()
        for out in ("out", "./out", "out/demo", "samples/out"):
            OutputFolder(Path(out)).refuse_input(Path(manifest))


def test_run_file_is_json_a_person_can_read(tmp_path: Path) -> None:
    OutputFolder(tmp_path).claim({"model": "mini"})
    text = (tmp_path / "run.json").read_text()
    assert "\n" in text
    assert msgspec.json.decode(text) == {"version": 1, "settings": {"model": "mini"}}
    assert os.access(tmp_path / "run.json", os.R_OK)
