"""Rows: aliases, defaults, ranges, problems, ids, seeds, takes, references."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fishcli.errors import UsageError
from fishcli.manifest import RowDefaults, RowSource, open_manifest, read_voice_pool
from fishcli.manifest.ids import seed_of
from fishcli.records import BadRow, Reference, Row, Sampling


def read(folder: Path, *rows: dict[str, Any], **defaults: Any) -> list[Row | BadRow]:
    path = folder / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return list(RowSource(open_manifest(path), RowDefaults(**defaults)))


def good(folder: Path, row: dict[str, Any], **defaults: Any) -> Row:
    (found,) = read(folder, row, **defaults)
    assert isinstance(found, Row), found
    return found


def problems(folder: Path, row: dict[str, Any], **defaults: Any) -> list[str]:
    (found,) = read(folder, row, **defaults)
    assert isinstance(found, BadRow), found
    return list(found.problems)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.wav"
    path.write_bytes(b"RIFF")
    return path


def test_a_text_alone_is_a_row_with_every_default(tmp_path: Path) -> None:
    row = good(tmp_path, {"text": " Hello\n world "}, run_seed=5)
    assert row.text == "Hello world"
    assert len(row.id) == 16
    assert row.seed == seed_of(5, row.id)
    assert (row.sampling, row.max_new_tokens, row.reference) == (Sampling(), 4096, None)
    assert (row.index, row.line, dict(row.extra), row.warnings) == (0, 1, {}, ())


@pytest.mark.parametrize(
    "row", [{}, {"text": None}, {"text": ""}, {"text": " \n\t"}, {"text": 3}, {"text": ["a"]}]
)
def test_no_usable_text_is_that_rows_error_and_the_others_are_read(
    tmp_path: Path, row: dict[str, Any]
) -> None:
    first, bad, last = read(tmp_path, {"text": "a"}, row, {"text": "b"})
    assert isinstance(first, Row)
    assert isinstance(last, Row)
    assert isinstance(bad, BadRow)
    assert bad.reason == "bad_text"
    assert bad.problems[0].startswith("line 2: text ")


def test_control_tokens_are_refused_in_text_and_transcript(tmp_path: Path, clip: Path) -> None:
    assert "<|im_end|>" in problems(tmp_path, {"text": "a <|im_end|>"})[0]
    row = {"text": "a", "ref_audio": clip.name, "ref_text": "<|semantic:12|>"}
    assert "<|semantic:12|>" in problems(tmp_path, row)[0]


def test_warnings_travel_with_the_row(tmp_path: Path) -> None:
    assert good(tmp_path, {"text": "see **this**"}).warnings == ("text contains markdown",)


@pytest.mark.parametrize("alias", ["utt", "custom_id"])
def test_aliases_of_the_id(tmp_path: Path, alias: str) -> None:
    assert good(tmp_path, {alias: "a1", "input": "x"}).id == "a1"
    assert good(tmp_path, {"file_name": "sets/a/1.b.wav", "input": "x"}).id == "1.b"


def test_the_canonical_name_wins_and_beaten_aliases_are_carried_through(tmp_path: Path) -> None:
    row = good(tmp_path, {"custom_id": "c", "input": "no", "utt": "u", "text": "yes", "x": 1})
    assert (row.id, row.text) == ("u", "yes")
    assert row.extra == {"custom_id": "c", "input": "no", "x": 1}
    # a null says nothing, so it doesn't win
    assert good(tmp_path, {"id": None, "utt": "u", "text": "a"}).id == "u"


def test_aliases_of_the_reference(tmp_path: Path, clip: Path) -> None:
    for alias in ("prompt_wav", "prompt_audio"):
        row = good(tmp_path, {"text": "a", alias: clip.name, "prompt_text": " said  this "})
        assert row.reference == Reference("audio", clip, "said this")
        assert row.extra == {}


def test_messages_use_the_name_the_manifest_uses(tmp_path: Path) -> None:
    assert problems(tmp_path, {"input": 3}) == ["line 1: input is 3: a string is expected"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", -1),
        ("max_new_tokens", 10**9),
        ("max_new_tokens", 10**30),
        ("max_new_tokens", "many"),
        ("max_new_tokens", True),
        ("max_new_tokens", 1.5),
        ("top_k", 0),
        ("top_k", "30"),
        ("temperature", -0.1),
        ("temperature", "0.7"),
        ("temperature", [1]),
        ("top_p", 0),
        ("top_p", 1.01),
        ("seed", -1),
        ("seed", 2**63),
    ],
)
def test_a_wrong_number_names_line_field_value_and_range(
    tmp_path: Path, field: str, value: Any
) -> None:
    (problem,) = problems(tmp_path, {"text": "a", field: value})
    assert problem.startswith(f"line 1: {field} is {value!r}: ")
    assert "allowed is " in problem


def test_numbers_at_the_ends_of_their_ranges_are_taken(tmp_path: Path) -> None:
    row = good(
        tmp_path,
        {"text": "a", "temperature": 0, "top_p": 1, "top_k": 30.0, "seed": 2**63 - 1},
        sampling=Sampling(top_p=0.5),
    )
    assert row.sampling == Sampling(0.0, 1.0, 30)
    assert isinstance(row.sampling.temperature, float)
    assert row.seed == 2**63 - 1
    assert good(tmp_path, {"text": "a", "max_new_tokens": 32768}).max_new_tokens == 32768


def test_every_problem_of_a_row_is_named(tmp_path: Path) -> None:
    found = problems(tmp_path, {"id": "CON", "text": "", "top_k": 0, "ref_text": "x"})
    assert [" ".join(p.split()[2:3]) for p in found] == ["id", "text", "top_k", "ref_text"]


def test_numbers_in_a_csv_are_read_from_text(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("id,text,top_k,temperature,year\n007,12,5,0.5,1984\n8,b,,,\n9,c,x,,\n")
    one, two, bad = RowSource(open_manifest(path), RowDefaults())
    assert isinstance(one, Row)
    assert (one.id, one.text, one.sampling) == ("007", "12", Sampling(0.5, 0.8, 5))
    assert one.extra == {"year": "1984"}
    assert isinstance(two, Row)
    assert two.sampling == Sampling()
    assert isinstance(bad, BadRow)
    assert bad.problems == (
        "line 4: top_k is 'x': a whole number is expected, allowed is [1, 4096]",
    )


def test_an_unreadable_line_is_a_bad_row_with_an_id_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("[1]\n[1]\n")
    one, two = RowSource(open_manifest(path), RowDefaults())
    assert isinstance(one, BadRow)
    assert one.reason == "bad_record"
    assert one.problems[0].startswith("line 1: not a JSON object")
    assert one.id != two.id


@pytest.mark.parametrize("value", ["../x", "a\0b", "CON", "x" * 300, "", 1.5, True])
def test_a_bad_id_fails_its_row_under_a_derived_one(tmp_path: Path, value: Any) -> None:
    (row,) = read(tmp_path, {"id": value, "text": "a"})
    assert isinstance(row, BadRow)
    assert row.reason == "bad_id"
    assert len(row.id) == 16


def test_whole_number_ids_become_strings(tmp_path: Path) -> None:
    assert good(tmp_path, {"id": 7, "text": "a"}).id == "7"


def test_a_missing_id_is_of_the_known_content_only(tmp_path: Path) -> None:
    rows = read(
        tmp_path,
        {"text": "a", "x": 1},
        {"x": 2, "input": " a "},
        {"text": "a", "top_k": 5},
        {"text": "a"},
    )
    first = rows[0].id
    assert [row.id for row in rows] == [first, f"{first}-2", rows[2].id, f"{first}-3"]
    assert rows[2].id != first
    assert [row.id for row in read(tmp_path, {"text": "a"})] == [first]


def test_takes_have_ids_and_seeds_of_their_own(tmp_path: Path) -> None:
    rows = read(tmp_path, {"id": "x", "text": "a"}, {"id": "y", "text": "b", "seed": 9}, takes=2)
    assert all(isinstance(row, Row) for row in rows)
    assert [(row.index, row.line, row.id) for row in rows] == [
        (0, 1, "x-take1"),
        (1, 1, "x-take2"),
        (2, 2, "y-take1"),
        (3, 2, "y-take2"),
    ]
    seeds = [row.seed for row in rows if isinstance(row, Row)]
    assert seeds == [seed_of(0, "x-take1"), seed_of(0, "x-take2"), 9, 10]


def test_defaults_out_of_range_are_refused(tmp_path: Path) -> None:
    wrongs: list[dict[str, Any]] = [{"takes": 0}, {"max_new_tokens": 0}, {"run_seed": -1}]
    for wrong in wrongs:
        with pytest.raises(UsageError, match="allowed is"):
            RowDefaults(**wrong)
    voice = Reference("voice", tmp_path / "v.voice")
    with pytest.raises(UsageError, match="exclude"):
        RowDefaults(reference=voice, voice_pool=(voice,))


def test_relative_paths_are_of_the_manifest_not_of_the_working_directory(
    tmp_path: Path, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    row = good(tmp_path, {"text": "a", "ref_audio": "./clip.wav", "ref_text": "t"})
    assert row.reference == Reference("audio", clip, "t")
    row = good(tmp_path, {"text": "a", "ref_audio": str(clip), "ref_text": "t"})
    assert row.reference == Reference("audio", clip, "t")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"ref_audio": "none.wav", "ref_text": "t"}, "ref_audio is 'none.wav': does not exist"),
        ({"ref_audio": ".", "ref_text": "t"}, "not a file"),
        ({"ref_audio": "empty.wav", "ref_text": "t"}, "is empty"),
        ({"ref_audio": "https://example.org/a.wav", "ref_text": "t"}, "URLs are not allowed"),
        ({"ref_audio": "a\0b", "ref_text": "t"}, "null byte"),
        ({"ref_audio": 3, "ref_text": "t"}, "a string is expected"),
        ({"ref_audio": "clip.wav"}, "clip.lab or clip.txt"),
        ({"ref_audio": "clip.wav", "ref_text": " "}, "transcript is wrong"),
        ({"ref_text": "t"}, "ref_text has no ref_audio"),
        ({"voice": "none.voice"}, "voice is 'none.voice': does not exist"),
        ({"voice": "clip.wav", "ref_audio": "clip.wav"}, "voice excludes ref_audio"),
    ],
)
def test_a_reference_that_cannot_be_used_is_the_rows_error(
    tmp_path: Path, clip: Path, row: dict[str, Any], words: str
) -> None:
    (tmp_path / "empty.wav").touch()
    (problem,) = problems(tmp_path, {"text": "a", **row})
    assert words in problem
    (bad,) = read(tmp_path, {"text": "a", **row})
    assert isinstance(bad, BadRow)
    assert bad.reason == "bad_reference"


def test_a_reference_without_transcript_names_the_remedies(tmp_path: Path, clip: Path) -> None:
    (problem,) = problems(tmp_path, {"text": "a", "ref_audio": "clip.wav"})
    for remedy in ("ref_text", "clip.lab", "clip.txt", "--save-voice"):
        assert remedy in problem


def test_a_sidecar_is_the_transcript(tmp_path: Path, clip: Path) -> None:
    clip.with_suffix(".txt").write_text("from\ntxt ")
    row = {"text": "a", "ref_audio": "clip.wav"}
    assert good(tmp_path, row).reference == Reference("audio", clip, "from txt")
    clip.with_suffix(".lab").write_text("\ufefffrom lab")
    assert good(tmp_path, row).reference == Reference("audio", clip, "from lab")
    told = good(tmp_path, {**row, "ref_text": "own"}).reference
    assert told == Reference("audio", clip, "own")
    clip.with_suffix(".lab").write_text("<|im_end|>")
    assert "<|im_end|>" in problems(tmp_path, row)[0]


def test_a_row_that_names_no_voice_gets_the_default(tmp_path: Path, clip: Path) -> None:
    default = Reference("audio", clip, "t")
    (tmp_path / "v.voice").write_bytes(b"v")
    one, two = read(tmp_path, {"text": "a"}, {"text": "a", "voice": "v.voice"}, reference=default)
    assert isinstance(one, Row)
    assert isinstance(two, Row)
    assert one.reference == default
    assert two.reference == Reference("voice", tmp_path / "v.voice")
    # a transcript alone is an error even so: it says that a clip was meant
    assert problems(tmp_path, {"text": "a", "ref_text": "x"}, reference=default)


def test_a_voice_pool_gives_each_id_its_voice(tmp_path: Path, clip: Path) -> None:
    pool_dir = tmp_path / "pool"
    pool_dir.mkdir()
    with pytest.raises(UsageError, match="holds no"):
        read_voice_pool(pool_dir)
    for name in ("b.wav", "c.wav", "mute.wav", "a.voice"):
        (pool_dir / name).write_bytes(b"x")
    for name in ("b.txt", "c.lab"):
        (pool_dir / name).write_text("said")
    pool = read_voice_pool(pool_dir)
    assert [reference.path.name for reference in pool] == ["a.voice", "b.wav", "c.wav"]
    rows = [{"id": f"r{n}", "text": "a"} for n in range(60)]
    voices = {
        row.id: row.reference
        for row in read(tmp_path, *rows, voice_pool=pool)
        if isinstance(row, Row)
    }
    assert set(voices.values()) == set(pool)
    again = read(tmp_path, *reversed(rows), voice_pool=pool)
    assert {row.id: row.reference for row in again if isinstance(row, Row)} == voices
    takes = read(tmp_path, {"id": "r1", "text": "a"}, voice_pool=pool, takes=3)
    assert {row.reference for row in takes if isinstance(row, Row)} == {voices["r1"]}
    with pytest.raises(UsageError, match="voice pool"):
        read_voice_pool(tmp_path / "none")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
NAMES = st.sampled_from(
    [
        "id",
        "utt",
        "custom_id",
        "file_name",
        "text",
        "input",
        "ref_audio",
        "prompt_wav",
        "ref_text",
        "voice",
        "temperature",
        "top_p",
        "top_k",
        "max_new_tokens",
        "seed",
        "extra",
    ]
)


@settings(max_examples=300)
@given(st.lists(st.dictionaries(NAMES, ANYTHING, max_size=6), max_size=4))
def test_any_record_becomes_one_row_or_names_its_problems(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    found = read(tmp_path_factory.mktemp("any"), *rows)
    assert [row.index for row in found] == list(range(len(rows)))
    for row in found:
        assert 1 <= len(row.id.encode()) <= 220
        if isinstance(row, BadRow):
            assert row.reason
            assert all(problem.startswith(f"line {row.line}: ") for problem in row.problems)
        else:
            assert 0 <= row.seed < 2**63
            assert row.text
