"""The dataset card that tells ``datasets.load_dataset(folder)`` which files are the data.

Without one, ``datasets`` guesses from names: it would load our tables as data, and files
whose ids hold words like test or train as splits, without their texts.
"""

from __future__ import annotations

from fishcli.outdir import OutputFolder, atomic_write

CARD_FILE = "README.md"
CARD = """\
---
configs:
- config_name: default
  data_files:
  - split: train
    path:
    - metadata.jsonl
    - wavs/**
---
Speech made by fishcli. `datasets.load_dataset` of this folder gives every sound file with the
columns of `metadata.jsonl`; `results.parquet` has all rows of the manifest, failed ones too.
"""


def write_card(out: OutputFolder) -> None:
    """Write the card, unless there is one already: it may have become the user's own."""
    path = out.path / CARD_FILE
    if not path.exists():
        atomic_write(path, CARD.encode())
