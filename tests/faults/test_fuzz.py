"""Whatever bytes come in: an answer or an error of ours, in bounded time, and no row uncounted.

The ordinary suite tries the same examples each time; the slow tests search on.
"""

import json
import resource
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fishcli.audio import MAX_REFERENCE_SECONDS, MIN_REFERENCE_SECONDS, SAMPLE_RATE, read_audio
from fishcli.errors import RowError, UsageError
from fishcli.fingerprint import Fingerprinter, ReferenceDigests
from fishcli.ledger import Ledger, Record
from fishcli.manifest import RowDefaults, RowSource, open_manifest
from fishcli.model import ModelConfig
from fishcli.model.tokenizer import load_tokenizer
from fishcli.outdir import OutputFolder
from fishcli.pipeline import synthesis, synthesize
from fishcli.plan import Policy, scan
from fishcli.prompt import SPEAKER, PromptBuilder, Spoken
from fishcli.results import write_results
from fishcli.settings import SynthSettings
from fishcli.voices import Voice, load_voice, save_voice
from tests.conftest import TOY
from tests.pipeline.conftest import Watcher

MB = 2**20
pytestmark = pytest.mark.timeout(900)  # the slow ones, on a busy machine


def sizes(few: int, many: int):
    """A test with ``few`` examples, and behind the marker with ``many``."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])


def try_out(check, examples: int, **strategies) -> None:
    """``check`` must hold for ``examples`` draws."""
    marks = {marker for marker in HealthCheck if marker.name in {"too_slow", "data_too_large"}}
    how = settings(
        max_examples=examples,
        deadline=None,
        derandomize=examples < 500,
        suppress_health_check=marks,
    )
    how(given(**strategies)(check))()


# Manifests

LOOSE_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
NAMES = ("id", "utt", "text", "ref_audio", "ref_text", "voice", "top_k", "seed", "file_name", "x")
FIELDS = st.dictionaries(
    st.sampled_from(NAMES) | st.text(max_size=4),
    LOOSE_JSON | st.sampled_from(("Hello.", "a", "../a", "7", 1, "rows.jsonl", "<|im_end|>")),
    max_size=4,
)
GOOD = st.integers(0, 99).map(lambda n: json.dumps({"id": f"r{n}", "text": f"Row {n}."}).encode())
JSON_LINE = (
    GOOD
    | FIELDS.map(lambda fields: json.dumps({"text": "Good.", **fields}).encode())
    | FIELDS.map(lambda fields: json.dumps(fields, ensure_ascii=False).encode(errors="replace"))
    | st.binary(max_size=30)
    | st.tuples(GOOD, st.integers(0, 30)).map(lambda cut: cut[0][: cut[1]])
)
TABLE_LINE = (
    st.lists(st.sampled_from(("r1", "Say this.", '"', '"a', "7", "", " ")), max_size=5).map(
        lambda cells: ",".join(cells).encode()
    )
    | st.sampled_from((b"u1|||Say this.", b"u2|Hm.|p.wav|Say that.", b"a|b|c|d|e", b"1\tSay."))
    | st.binary(max_size=30)
)
BREAKS = st.sampled_from((b"\n", b"\r\n", b"\n\n", b"\r"))
MANIFESTS = st.one_of(
    st.tuples(st.just(".jsonl"), st.just(b""), st.lists(JSON_LINE, max_size=6), BREAKS),
    st.tuples(
        st.sampled_from((".csv", ".tsv", ".lst")),
        st.sampled_from(
            (b"id,text\n", b"id\ttext\n", b"text,top_k,x\n", b"\xef\xbb\xbftext\n", b"")
        ),
        st.lists(TABLE_LINE, max_size=6),
        BREAKS,
    ),
)


def write_any(folder: Path, parts: tuple[str, bytes, list[bytes], bytes]) -> Path:
    suffix, header, lines, between = parts
    path = folder / f"rows{suffix}"
    path.write_bytes(header + between.join(lines))
    return path


def told_of(path: Path) -> int | None:
    """How many records a file of one a line holds; None where quotes may span lines."""
    if path.suffix not in {".jsonl", ".lst"}:
        return None
    data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    return sum(bool(line) and not line.isspace() for line in data.split(b"\n"))


@sizes(200, 5_000)
def test_any_manifest_is_planned_or_refused_and_its_rows_are_told(tmp_path_factory, examples):
    prints = Fingerprinter("model", "wav", "PCM_16", ReferenceDigests())

    def check(parts):
        folder = tmp_path_factory.mktemp("any")
        path, out = write_any(folder, parts), OutputFolder(folder / "out")
        (folder / "out").mkdir()
        try:
            with open_manifest(path) as manifest, Ledger.read(out.path) as ledger:
                plan = scan(RowSource(manifest, RowDefaults()), ledger, prints, Policy(), out)
                write_results(plan, ledger, prints, out)
        except UsageError as error:  # the same id twice, a header that is none
            assert str(error)
            return
        assert plan.counts.rows == plan.counts.todo + plan.counts.failed
        assert told_of(path) in {None, plan.counts.rows}
        assert plan.counts.todo == sum(len(window) for window in plan.windows(size=3))
        table = pq.read_table(out.path / "results.parquet")
        assert table["status"].to_pylist().count("failed") == plan.counts.failed
        assert table.num_rows == plan.counts.rows

    try_out(check, examples, parts=MANIFESTS)


@pytest.fixture
def loaded_once(monkeypatch):
    """Runs of this process share one set of the toy checkpoint's models."""
    load, kept = synthesis.load_models, {}

    def models(*args):
        return kept.setdefault("models", load(*args) if not kept else None)

    monkeypatch.setattr(synthesis, "load_models", models)


@pytest.mark.usefixtures("loaded_once")
@sizes(12, 500)
def test_a_run_over_any_manifest_gives_every_row_one_outcome(tmp_path_factory, examples):
    chosen = replace(SynthSettings.defaults(), model="mini", device="cpu", max_new_tokens=2)

    def check(parts):
        folder = tmp_path_factory.mktemp("any")
        path, out = write_any(folder, parts), folder / "out"
        before = threading.active_count()
        for again in (False, True):
            try:
                report = synthesize(path, out, chosen, Watcher())
            except UsageError as error:
                assert str(error)
                return
            rows = report.rows
            assert rows.read == rows.ok + rows.capped + rows.failed + rows.skipped > 0
            assert told_of(path) in {None, rows.read}
            assert not again or rows.ok == rows.capped == 0
            with Ledger.read(out) as ledger:
                sounding = {record.file for record in ledger if record.file}
            assert {f"wavs/{file.name}" for file in out.glob("wavs/*")} == sounding
        assert threading.active_count() <= before

    try_out(check, examples, parts=MANIFESTS)


# Prompts

CONFIG = ModelConfig.from_folder(TOY)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(TOY, CONFIG)


PIECES = st.sampled_from(
    (
        "<|im_end|>",
        "<|im_start|>",
        "<|semantic:1|>",
        "<|voice|>",
        "<|speaker:1|>",
        "<|",
        "|>",
        "\udcff",
    )
)
TEXTS = st.lists(st.text(st.characters(), max_size=12) | PIECES, max_size=6).map("".join)


@sizes(400, 50_000)
def test_any_text_becomes_a_grid_without_control_tokens_or_an_error_of_its_row(tokenizer, examples):
    builder = PromptBuilder(tokenizer, CONFIG)
    control = [
        tokenizer.encode(token)[0]
        for token in tokenizer.control_tokens
        if not SPEAKER.fullmatch(token)
    ]
    control = torch.tensor(control)
    frame = builder.build("")
    codes = torch.zeros(CONFIG.num_codebooks, 2, dtype=torch.int32)

    def check(text, transcript):
        try:
            alone = builder.build(text)
            cloned = builder.build(text, [Spoken(transcript, codes)])
        except RowError as error:
            assert error.reason == "bad_text"
            return
        for grid in (alone, cloned):
            assert grid.dtype == torch.int32
            assert grid.shape[0] == 1 + CONFIG.num_codebooks
        assert not alone[1:].any()
        own = len(alone[0]) - len(frame[0])  # columns of the text
        place = len(frame[0]) - own_tail(frame)
        assert torch.equal(alone[0, :place], frame[0, :place])
        assert torch.equal(alone[0, place + own :], frame[0, place:])
        assert not torch.isin(alone[0, place : place + own], control).any()
        # All that steers in a cloning prompt is our own: as much as with an empty transcript.
        steering = torch.isin(cloned[0], control).sum()
        plain = builder.build("", [Spoken("", codes)])
        assert steering == torch.isin(plain[0], control).sum()

    def own_tail(grid):
        """Columns behind the user's text: the last message's end and the assistant's opening."""
        ends = (grid[0] == CONFIG.im_end).nonzero()
        return len(grid[0]) - int(ends[-1])

    try_out(check, examples, text=TEXTS, transcript=TEXTS)


# Ledgers

REAL = [Record(f"r{n}", f"{n:032x}", "ok", file=f"wavs/r{n}.wav", bytes=9) for n in range(4)]
REAL_LINES = [msgspec.json.encode(record) for record in REAL]
GARBAGE = (
    st.binary(max_size=60)
    | st.sampled_from((b"\0" * 4096, b'{"id":' + b"[" * 5000, b"{}", b'{"id":"r1"}', b"\xff" * 9))
    | st.tuples(st.sampled_from(REAL_LINES), st.integers(0, 80)).map(lambda cut: cut[0][: cut[1]])
)


@sizes(200, 20_000)
def test_any_bytes_between_records_cost_no_record(tmp_path_factory, examples):
    def check(garbage, tail):
        out = tmp_path_factory.mktemp("any")
        (out / "ledger").mkdir()
        mixed = [part for pair in zip(garbage, REAL_LINES, strict=True) for part in pair]
        (out / "ledger" / "main.jsonl").write_bytes(b"\n".join([*mixed, tail]))
        with Ledger.open(out) as ledger:
            assert [ledger.get(record.id) for record in REAL] == REAL
            assert len(ledger) == len(REAL)
            ledger.append([replace_id(REAL[0], "new")])
        with Ledger.read(out) as ledger:
            assert list(ledger) == [*REAL, replace_id(REAL[0], "new")]

    # A whole record in the garbage, by chance or cut at its end, would be no garbage.
    cuts = GARBAGE.filter(lambda data: data not in REAL_LINES)
    try_out(check, examples, garbage=st.tuples(cuts, cuts, cuts, cuts), tail=cuts)


def replace_id(record: Record, name: str) -> Record:
    return msgspec.structs.replace(record, id=name)


# Sounds and voices


@st.composite
def mutations(draw):
    """A function that damages bytes in a few places, most of them in the header."""
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, 120) | st.integers(0, 20_000))
        what = draw(st.sampled_from(("set", "cut", "insert", "drop")))
        data = draw(st.binary(min_size=1, max_size=4) | EXTREMES)
        steps.append((what, place, data))

    def mutate(data: bytes) -> bytes:
        for what, place, new in steps:
            if what == "set":
                data = data[:place] + new + data[place + len(new) :]
            elif what == "cut":
                data = data[:place] if place > 120 else data
            elif what == "insert":
                data = data[:place] + new + data[place:]
            else:
                data = data[:place] + data[place + len(new) :]
        return data

    return mutate


EXTREMES = st.sampled_from([n.to_bytes(4, "little") for n in (0, 1, 2**16, 2**31 - 1, 2**32 - 1)])
KINDS = (("wav", "PCM_16"), ("wav", "FLOAT"), ("wav", "PCM_24"), ("flac", "PCM_16"), ("ogg", None))


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """A clip of each kind, as bytes."""
    wave = 0.3 * np.sin(np.arange(int(0.7 * 8000)) / 9)
    folder, made = tmp_path_factory.mktemp("clips"), []
    for number, (container, subtype) in enumerate(KINDS):
        path = folder / f"{number}.{container}"
        soundfile.write(path, wave, 8000, subtype=subtype)
        made.append(path.read_bytes())
    return made


@sizes(300, 30_000)
def test_any_damage_to_a_clip_gives_samples_or_an_error_of_its_row(tmp_path, clips, examples):
    path = tmp_path / "clip.wav"
    heard = []

    def check(which, mutate):
        path.write_bytes(mutate(clips[which]))
        started = time.monotonic()
        try:
            samples = read_audio(path)
        except RowError as error:
            assert error.reason == "bad_audio"
            assert str(path) in str(error)
            samples = None
        assert time.monotonic() - started < 5
        if samples is not None:
            heard.append(len(samples))
            assert samples.dtype == np.float32
            assert np.isfinite(samples).all()
            rounding = 2 / SAMPLE_RATE
            assert MIN_REFERENCE_SECONDS - rounding <= len(samples) / SAMPLE_RATE
            assert len(samples) / SAMPLE_RATE <= MAX_REFERENCE_SECONDS + rounding

    before = most_memory()
    try_out(check, examples, which=st.integers(0, len(KINDS) - 1), mutate=mutations())
    assert most_memory() - before < 200 * MB
    assert heard  # not every file was beyond use


def most_memory() -> int:
    """The most this process has held so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@sizes(200, 20_000)
def test_any_damage_to_a_voice_file_gives_a_voice_or_an_error_of_its_row(tmp_path, examples):
    path = tmp_path / "a.voice"
    save_voice(path, Voice(torch.zeros(10, 3, dtype=torch.int32), "Said."), "codec")
    whole = path.read_bytes()

    def check(mutate):
        path.write_bytes(mutate(whole))
        try:
            voice = load_voice(path, "codec")
        except RowError as error:
            assert error.reason == "bad_voice"
            assert str(path) in str(error)
        else:
            assert voice.codes.ndim == 2
            assert voice.codes.dtype == torch.int32

    try_out(check, examples, mutate=mutations())
