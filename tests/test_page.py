"""The page: all it says is escaped and measured, and it needs nothing but itself."""

import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fishcli.ledger import Record
from fishcli.overview import ODD_KEPT, Overview
from fishcli.page import render
from fishcli.report import HOW, folder_totals

RUN: dict[str, Any] = {
    "rows": {"read": 9, "ok": 4, "capped": 1, "failed": 1, "skipped": 3, "pending": 0},
    "model": "mini",
    "device": "cpu",
    "dtype": "float32",
    "weights": "trained",
    "audio_s": 12.5,
    "wall_s": 4.0,
    "ended": "complete",
    "occupancy": 0.5,
    "rtf": {"mean": 0.25, "median": 0.2, "p95": 0.4},
    "stages": {"plan_s": 1.0, "codec_s": 3.0, "voices_encoded": 2},
    "reasons": {"no_audio": 1},
    "settings": {"seed": 0},
}
TEXTS = "html meta title style body h1 h2 p a table tr th td div details summary"
PLOTS = "i figure figcaption svg text rect polyline line"
KNOWN = set(f"{TEXTS} {PLOTS}".split())


class Page(HTMLParser):
    """Text and elements of a page; an element we never write is an escape that failed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in KNOWN, tag
        assert not any(name.startswith("on") for name, _ in attrs)
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


def page(records: Iterable[Record], run: dict[str, Any] | None = None) -> Page:
    overview = Overview()
    document = {"folder": folder_totals(overview.seeing(records)), "how": HOW}
    return Page(render(document if run is None else {**document, "run": run}, overview))


def ok(row_id: str, **more: Any) -> Record:
    values = {"file": f"wavs/{row_id}.wav", "duration_s": 2.0, "rtf": 0.5, "ttfp_s": 1.0, **more}
    return Record(id=row_id, fingerprint="f", status="ok", **values)


def failed(row_id: str, reason: str = "no_audio", message: str = "silence") -> Record:
    return Record(id=row_id, fingerprint="f", status="failed", reason=reason, message=message)


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'</td></table></style>",
    "$body ${title} {body}",
    "&lt;b&gt; & é 木 \U0001f600",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_nothing_more(text: str) -> None:
    run = {**RUN, "model": text, "reasons": {text: 1}, "ended": text, "settings": {text: text}}
    records = [failed(text, text, text), ok(text, flags=(text,))]
    shown = page(records, run)
    assert shown.text.count(text) >= 6
    assert [tag for tag, _ in shown.elements].count("h1") == 1


@given(st.text())
def test_any_text_leaves_the_page_whole(text: str) -> None:
    shown = page([failed(text, text, text), ok(text, flags=(text,))], {**RUN, "model": text})
    assert shown.elements[-1][0] in KNOWN


def test_text_that_is_not_unicode_is_shown_as_far_as_it_goes() -> None:
    assert "folder?" in page([], {**RUN, "model": "folder\udcff"}).text


def test_links_lead_into_the_folder_only() -> None:
    records = [ok("a b#1?", flags=("x",)), ok("js", file="javascript:alert(1)", flags=("x",))]
    links = [found["href"] for tag, found in page(records).elements if tag == "a"]
    assert links == ["wavs/a%20b%231%3F.wav", "javascript%3Aalert%281%29"]


def test_the_page_needs_nothing_but_itself() -> None:
    source = render({"folder": folder_totals([]), "how": HOW, "run": RUN}, Overview())
    assert "default-src 'none'" in source
    assert not re.search(r"src=|https?://|url\(|@import|<link", source)


def test_an_empty_folder_has_a_page() -> None:
    shown = page([])
    assert "no figures of a run" in shown.text
    assert "svg" not in dict(shown.elements)


def test_a_run_of_failures_only_has_a_page() -> None:
    run = {**RUN, "rows": {**RUN["rows"], "ok": 0, "capped": 0, "failed": 2}}
    shown = page([failed("a"), failed("b", "not_finite", "the codec's output")], run)
    assert "no_audio: silence" in shown.text
    assert "not_finite: the codec's output" in shown.text
    assert not {"svg", "a"} & {tag for tag, _ in shown.elements}


def test_figures_say_how_they_were_measured() -> None:
    text = page([ok("a")], RUN).text
    assert "mean 0.25, median 0.2, p95 0.4" in text
    assert "50%" in text
    assert HOW["occupancy"] in text


@pytest.mark.parametrize(
    ("name", "label"), [("rtf", "RTF"), ("occupancy", "batch occupancy"), ("stages", "codec")]
)
def test_a_figure_that_was_not_measured_is_absent(name: str, label: str) -> None:
    without = {key: value for key, value in RUN.items() if key != name}
    assert label in page([], RUN).text.splitlines()
    assert label not in page([], without).text.splitlines()


def test_only_the_first_odd_rows_are_listed_and_all_are_counted() -> None:
    records = [failed(f"row-{n:03}") for n in range(ODD_KEPT + 50)]
    text = page(records).text
    assert "(the first 100 of 150)" in text
    assert "row-099" in text
    assert "row-100" not in text


def test_ok_rows_are_not_listed_unless_flagged() -> None:
    text = page([ok("plain"), ok("loud", flags=("clipped 3 samples",))]).text
    assert "plain" not in text
    assert "clipped 3 samples" in text


def test_texts_are_compared_with_their_audio(tmp_path: Path) -> None:
    table = pa.table({"text": ["ab", "木", None], "duration_s": [1.0, None, 2.0]})
    pq.write_table(table, tmp_path / "results.parquet")
    overview = Overview()
    overview.read_texts(tmp_path / "results.parquet")
    assert list(overview.by_text.counts.values()) == [1]
    assert "2 B" in overview.by_text.svg(" B", " s", float)


@pytest.mark.parametrize("content", [None, b"", b"no table"])
def test_without_a_readable_table_texts_are_left_out(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "results.parquet").write_bytes(content)
    overview = Overview()
    overview.read_texts(tmp_path / "results.parquet")
    assert not overview.by_text.counts
