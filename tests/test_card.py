"""``datasets`` loads an output folder by its name, whatever the ids look like."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fishcli.card import CARD_FILE, write_card
from fishcli.outdir import OutputFolder

# datasets imports torchcodec before it looks at a path; no audio is coded or decoded here.
LOAD = """
import json, sys, types
from datasets import Audio, load_dataset
for name in ("torchcodec", "torchcodec.encoders"):
    sys.modules.setdefault(name, types.SimpleNamespace(AudioEncoder=None))
cache, *folders = sys.argv[1:]
for number, folder in enumerate(folders):
    data = load_dataset(folder, cache_dir=f"{cache}/{number}")
    data = data.cast_column("audio", Audio(decode=False))
    told = lambda row: (row["id"], row["text"], row["audio"]["path"])
    print(json.dumps({name: [told(row) for row in split] for name, split in data.items()}))
"""


def make_folder(path: Path, ids: list[str], layout: str, suffix: str) -> OutputFolder:
    """What a run leaves there, as far as datasets could stumble over it."""
    out = OutputFolder(path, layout)  # type: ignore[arg-type]
    lines = []
    for row_id in ids:
        soundfile.write(out.wav_path(row_id, suffix), np.zeros(2048), 44100)
        line = {"file_name": out.wav_name(row_id, suffix), "id": row_id, "text": f"Text {row_id}"}
        lines.append(json.dumps(line))
    (path / "metadata.jsonl").write_text("\n".join(lines))
    for name in ("results.parquet", "report.json", "report.html", "run.json"):
        (path / name).write_text("{}")
    (path / "ledger").mkdir()
    (path / "ledger" / "main.jsonl").write_text('{"id": "r"}\n')
    out.temporary_path(".wav").write_bytes(b"half")
    write_card(out)
    return out


def test_every_row_is_loaded_with_its_text(tmp_path: Path) -> None:
    cases = {
        "plain": (["a", "b"], "flat", ".wav"),
        "split-words": (["test-1", "train-2", "dev_3", "a.valid.4"], "flat", ".wav"),
        "hashed": (["test-1", "test-2"], "hashed", ".wav"),
        "one": (["eval"], "flat", ".flac"),
    }
    folders = []
    for name, case in cases.items():
        make_folder(tmp_path / name, *case)
        folders.append(str(tmp_path / name))
    command = [sys.executable, "-c", LOAD, str(tmp_path / "cache"), *folders]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    for (name, (ids, *_)), line in zip(cases.items(), done.stdout.splitlines(), strict=True):
        loaded = json.loads(line)
        assert set(loaded) == {"train"}, name
        told = {row_id: (text, Path(audio).stem) for row_id, text, audio in loaded["train"]}
        assert told == {row_id: (f"Text {row_id}", row_id) for row_id in ids}


@pytest.mark.parametrize("text", ["# My corpus", ""])
def test_a_card_that_is_there_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / CARD_FILE).write_text(text)
    write_card(OutputFolder(tmp_path))
    assert (tmp_path / CARD_FILE).read_text() == text
