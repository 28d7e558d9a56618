"""Five sentences through the whole pipeline, and whether they can be understood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fishcli.asr import AsrUnavailableError, Transcriber, load_transcriber
from fishcli.checkpoint import Checkpoint
from fishcli.doctor.finding import Finding, judge
from fishcli.doctor.wer import word_errors
from fishcli.ledger import Ledger, Record
from fishcli.metrics import Progress
from fishcli.pipeline import synthesize
from fishcli.settings import SynthSettings

SENTENCES = (
    "The birch canoe slid on the smooth planks.",
    "Glue the sheet to the dark blue background.",
    "It's easy to tell the depth of a well.",
    "These days a chicken leg is a rare dish.",
    "Rice is often served in round bowls.",
)  # the first Harvard list
WER_LIMIT = 0.2


class _Silent:
    """An observer of a run that nobody watches."""

    def note(self, line: str) -> None:
        """Say nothing."""

    def progress(self, progress: Progress) -> None:
        """Say nothing."""


def speak(checkpoint: Checkpoint, device_name: str, folder: Path) -> Iterator[Finding]:
    """Say the sentences into ``folder``, one finding each, and how well all are understood.

    With random weights nothing is judged but that audio comes out.
    """
    texts = {f"sentence-{i}": text for i, text in enumerate(SENTENCES, start=1)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    manifest = folder.with_name(f"{folder.name}.jsonl")
    rows = (json.dumps({"id": row_id, "text": text}) for row_id, text in texts.items())
    manifest.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    settings = replace(
        SynthSettings.defaults(), model=checkpoint.name, device=device_name, overwrite=True
    )
    synthesize(manifest, folder, settings, _Silent())
    with Ledger.read(folder) as ledger:
        records = {row_id: ledger.get(row_id) for row_id in texts}
    for row_id, record in records.items():
        yield _judge_row(row_id, record, trained=checkpoint.weights == "trained")
    yield Finding("--", "listen", f"the sentences are in {folder / 'wavs'}")
    try:
        transcriber = load_transcriber()
    except AsrUnavailableError as error:
        yield Finding("--", "understood", f"not judged: {error}")
        return
    files = {text: records[row_id] for row_id, text in texts.items()}
    yield _judge_words(transcriber, files, folder, trained=checkpoint.weights == "trained")


def _judge_row(row_id: str, record: Record | None, *, trained: bool) -> Finding:
    if record is None or record.status == "failed":
        return Finding("FAIL", row_id, record.message if record else "left no record")
    text = f"{record.duration_s:.1f} s, rtf {record.rtf or 0.0:.2f}"
    if record.status == "ok":
        return Finding("ok", row_id, f"{text}, ended by itself")
    return Finding("FAIL" if trained else "--", row_id, f"{text}, cut off at its budget")


def _judge_words(
    transcriber: Transcriber, files: dict[str, Record | None], folder: Path, *, trained: bool
) -> Finding:
    """Word error rate over all sentences; one without a file counts as wholly wrong."""
    errors = words = 0
    for text, record in files.items():
        heard = transcriber.transcribe(folder / record.file) if record and record.file else ""
        wrong, said = word_errors(text, heard)
        errors, words = errors + wrong, words + said
    rate = errors / words
    text = f"word error rate {rate:.0%} by {transcriber.name} (allowed {WER_LIMIT:.0%})"
    return (
        judge(rate <= WER_LIMIT, "understood", text)
        if trained
        else Finding("--", "understood", text)
    )
