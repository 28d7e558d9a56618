"""The report as a page a person can look at: one HTML file, no script, nothing from elsewhere.

Ids, reasons and names come from manifests and models, so every text is escaped here, in
:func:`_escaped`, and nowhere else.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any
from urllib.parse import quote

from fishcli.estimate import BYTES_PER_SECOND, FRAME_RATE, estimate_frames
from fishcli.ledger import Record
from fishcli.overview import Overview
from fishcli.plots import number

# Figures of a run: name in the report, name on the page, unit.
FIGURES = (
    ("audio_s", "audio", "s"),
    ("wall_s", "wall time", "s"),
    ("work_s", "work time", "s"),
    ("audio_s_per_s", "audio throughput", "audio-s/s"),
    ("rows_per_s", "request throughput", "rows/s"),
    ("rtf", "RTF", ""),
    ("ttfp_s", "TTFP", "s"),
    ("occupancy", "batch occupancy", "%"),
    ("slots", "slots", ""),
    ("peak_memory_gb", "peak memory", "GB"),
)
HOW_NAMES = {"peak_memory_gb": "peak_memory"}  # where ``how`` has another name
OUTCOMES = ("ok", "capped", "failed", "skipped", "pending")


def render(document: Mapping[str, Any], overview: Overview) -> str:
    """The page of a report ``document`` (what report.json holds)."""
    run: dict[str, Any] = document.get("run", {})
    title = f"{run['model']} on {run['device']}" if run else "fishcli"
    parts = [
        f"<h1>{_escaped(title)}</h1>",
        f'<p class="quiet">{_escaped(_subtitle(document, run))}</p>',
        _outcomes(run.get("rows") or document["folder"]),
        _folder(document["folder"]),
        _figures(run, document.get("how", {})),
        _stages(run.get("stages", {}), run.get("wall_s", 0.0), document.get("how", {})),
        _plots(overview),
        _table("Failed rows by reason", _most(run.get("reasons", document["folder"]["reasons"]))),
        _odd_rows(overview),
        *(
            f"<details><summary>{name}</summary>{_table('', list(run[name].items()))}</details>"
            for name in ("settings", "machine")
            if run.get(name)
        ),
    ]
    template = (resources.files("fishcli") / "page.html").read_text(encoding="utf-8")
    return Template(template).substitute(title=_escaped(title), body="\n".join(parts))


def _subtitle(document: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    told = [run.get("dtype"), document.get("date"), None if run else "no figures of a run"]
    if run.get("weights") == "random":
        told.append("random weights: speed only")
    if run.get("ended", "complete") != "complete":
        told.append(f"ended early: {run['ended']}")
    return " · ".join(text for text in told if text)


def _outcomes(rows: Mapping[str, int]) -> str:
    """Rows by outcome, each with its share as a bar."""
    counts = {name: rows[name] for name in OUTCOMES if name in rows}
    total = max(1, sum(counts.values()))
    lines = "".join(
        f"<tr><th>{name}</th><td class=number>{count:,}</td>{_bar(count / total, name)}</tr>"
        for name, count in counts.items()
        if count or name in {"ok", "capped", "failed"}
    )
    return f"<h2>Rows by outcome</h2><table>{lines}</table>"


def _folder(totals: Mapping[str, Any]) -> str:
    files = totals["ok"] + totals["capped"]
    return (
        f"<p>The folder holds {files:,} files, {_duration(totals['audio_s'])} of audio, "
        f"{number(totals['bytes'] / 1e6)} MB.</p>"
    )


def _figures(run: Mapping[str, Any], how: Mapping[str, str]) -> str:
    measured = [
        (label, _figure(run[name], unit), how.get(HOW_NAMES.get(name, name), ""))
        for name, label, unit in FIGURES
        if run.get(name) is not None
    ]
    return _table("Figures of the last run", measured, ("", "", "how it was measured"))


def _figure(value: Any, unit: str) -> str:
    """A number, or several with their names."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_figure(part, unit)}" for name, part in value.items())
    return f"{value:.0%}" if unit == "%" else f"{number(value)} {unit}".strip()


def _stages(stages: Mapping[str, float], wall_s: float, how: Mapping[str, str]) -> str:
    """Where the seconds went, each part as a share of the wall time."""
    seconds = {name.removesuffix("_s"): s for name, s in stages.items() if name.endswith("_s")}
    if not seconds or wall_s <= 0:
        return ""
    lines = "".join(
        f"<tr><th>{_escaped(name)}</th><td class=number>{number(spent)} s</td>"
        f"{_bar(min(1.0, spent / wall_s), 'stage')}</tr>"
        for name, spent in seconds.items()
    )
    told = _escaped(f"Bars are shares of the wall time; {how.get('stages', '')}.")
    return f'<h2>Where the seconds went</h2><p class="quiet">{told}</p><table>{lines}</table>'


def _plots(overview: Overview) -> str:
    def expected_s(size: float) -> float:
        return size / BYTES_PER_SECOND + estimate_frames("") / FRAME_RATE

    by_text = overview.by_text.svg(" B", " s", expected_s)
    plots = {
        "Duration": overview.duration_s.svg(" s"),
        "RTF": overview.rtf.svg(""),
        "TTFP": overview.ttfp_s.svg(" s"),
        "Seconds against bytes of text; dashed: expected": by_text,
    }
    drawn = "".join(
        f"<figure><figcaption>{name}</figcaption>{svg}</figure>"
        for name, svg in plots.items()
        if svg
    )
    told = "All rows of the folder that have audio; logarithmic axes."
    return f'<h2>Rows</h2><p class="quiet">{told}</p><div>{drawn}</div>' if drawn else ""


def _odd_rows(overview: Overview) -> str:
    rows = [(r.id, r.status, _what(r), r.file and f"{r.duration_s:.2f} s") for r in overview.odd]
    title = "Rows to look at: capped, failed or flagged"
    if overview.odd_count > len(rows):
        title += f" (the first {len(rows)} of {overview.odd_count:,})"
    links = [quote(record.file) for record in overview.odd]
    return _table(title, rows, ("id", "status", "what", "audio"), links)


def _what(record: Record) -> str:
    capped = "cut off at its budget" if record.status == "capped" else ""
    failed = f"{record.reason}: {record.message}" if record.reason else ""
    return "; ".join(part for part in (capped, failed, *record.flags) if part)


def _most(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(name, f"{n:,}") for name, n in sorted(counts.items(), key=lambda item: -item[1])]


def _table(
    title: str,
    rows: Iterable[Sequence[Any]],
    heads: Sequence[str] = (),
    links: Sequence[str] = (),
) -> str:
    """A table of texts, nothing without rows. ``links``: where each row's last cell leads."""
    lines = []
    for place, (first, *others) in enumerate(rows):
        cells = [_escaped(str(value)) for value in others]
        if links and links[place]:
            cells[-1] = f'<a href="{links[place]}">{cells[-1]}</a>'
        told = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f"<tr><th>{_escaped(str(first))}</th>{told}</tr>")
    if not lines:
        return ""
    head = "".join(f"<th>{name}</th>" for name in heads)
    heading = f"<h2>{_escaped(title)}</h2>" if title else ""
    return f"{heading}<table>{f'<tr>{head}</tr>' if head else ''}{''.join(lines)}</table>"


def _bar(share: float, kind: str) -> str:
    """A table's cell with a bar in it, nothing in it for a share of 0."""
    bar = f'<i class="{kind}" style="width:{share:.2%}"></i>' if share else ""
    return f"<td class=bars>{bar}</td>"


def _duration(seconds: float) -> str:
    """In the largest unit that gives a number above 2."""
    units = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
    size, unit = next((u for u in units if seconds > 2 * u[0]), units[-1])
    return f"{number(seconds / size)} {unit}"


def _escaped(text: str) -> str:
    return html.escape(text.encode(errors="replace").decode())
