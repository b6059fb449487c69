"""A profile as one page with nothing to load: the timeline of every rank, bars, findings, tables.

The timeline is drawn from how full each pixel column is, so that a page of ten million events is as
small as one of a thousand.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from detectors.kernel_waste import short_name
from detectors.late_in_profile import doing_text
from exporters.profile import RankProfile
from exporters.readers.profiles import intervals, names
from exporters.readers.profiles import table as t
from exporters.readers.profiles.summary import window_of
from runbooks.cli.findings_text import unseen_line
from runbooks.cli.trace_text import (
    NOT_TOLD,
    apart,
    late_text,
    milliseconds,
    share,
    size,
)
from runbooks.trace_report import TraceReport

_COLUMNS: Final = 900
_LEFT: Final = 64
_LANE: Final = 13
_SHADES: Final = 4
_MOST_RANKS: Final = 64
_MOST_LABELS: Final = 24

# Lanes of one rank, top down: title, class, kinds of rows.
_LANES: Final = (
    ("ranges", "cpu", t.CPU_KINDS),
    ("kernels", "kernel", (t.KERNEL,)),
    ("copies", "copy", (t.COPY_D2H, t.COPY_H2D, t.COPY_OTHER, t.FILL)),
    ("collectives", "coll", t.COLLECTIVE_KINDS),
)

_STYLE: Final = """
:root { --ink: #1c1e21; --dim: #667; --line: #d8dbe0; --paper: #fff; --kernel: #3b6fb6;
  --copy: #d9822b; --coll: #9aa5b1; --wait: #c0392b; --cpu: #6c9a5b; --idle: #eceff3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --dim: #9aa; --line: #3a3f46;
  --paper: #16181b; --kernel: #6f9fe0; --copy: #e9a254; --coll: #7b8794; --wait: #e06657;
  --cpu: #8fbf7c; --idle: #24282d; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1040px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.35rem; margin: 0 0 .3rem; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
p, li { max-width: 80ch; } .dim { color: var(--dim); }
.finding { border-left: 4px solid var(--copy); padding: .1rem .8rem; margin: .8rem 0; }
.finding.critical { border-color: var(--wait); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .15rem .7rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, td.text { text-align: left; } td.text { max-width: 44ch;
  overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.scroll { overflow-x: auto; } svg { display: block; } svg text { fill: var(--dim);
  font: 10px system-ui, sans-serif; } svg .rank { fill: var(--ink); font-weight: 600; }
.kernel { fill: var(--kernel); } .copy { fill: var(--copy); } .coll { fill: var(--coll); }
.wait { fill: var(--wait); } .cpu { fill: var(--cpu); } .idle { fill: var(--idle); }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
"""


def page(report: TraceReport) -> str:
    """The whole page as text (UTF-8)."""
    profile = report.profile
    late = profile.late
    said = late_text(late) if late else "cannot be told"
    files = ", ".join(f.path.rsplit("/", 1)[-1] for f in report.recording.files[:8])
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>stallscope trace</title><style>{_STYLE}</style>",
        "<h1>Who waited for whom</h1>",
        f"<p class='dim'>{_e(files)}: {len(profile.ranks)} ranks, {profile.wall_seconds:.3f} s</p>",
        f"<p><b>Late rank:</b> {_e(said)}.</p>",
        _meanwhile(report),
        *(_finding(report, i) for i in range(len(report.findings))),
        *_timelines(report),
        "<h2>Each rank's time</h2>",
        _bars(report),
        _rank_table(report),
        _gap_table(report),
        _kernel_table(report),
        _unseen(report),
        "</html>",
    ]
    return "\n".join(part for part in parts if part)


def _e(text: object) -> str:
    return html.escape(str(text))


def _meanwhile(report: TraceReport) -> str:
    late = report.profile.late
    if late is None or not late.meanwhile:
        return ""
    items = "".join(f"<li>{_e(doing_text(d))}</li>" for d in late.meanwhile)
    return f"<p>While the others waited, rank {late.rank} did:</p><ul>{items}</ul>"


def _finding(report: TraceReport, index: int) -> str:
    f = report.findings[index]
    rank = "" if f.rank is None else f", rank {f.rank}"
    items = "".join(f"<li>{_e(e.text)}</li>" for e in f.evidence)
    return (
        f"<div class='finding {_e(f.severity)}'><b>{_e(f.severity)}: {_e(f.id)}{rank}</b> "
        f"<p>{_e(f.summary)}</p><ul>{items}</ul></div>"
    )


@dataclass(frozen=True, slots=True)
class _View:
    """A window of the record and its columns' edges in ns, shape (_COLUMNS + 1,)."""

    begin_ns: int
    end_ns: int

    def edges(self) -> t.Int:
        return np.linspace(self.begin_ns, self.end_ns, _COLUMNS + 1).astype(np.int64)

    def at(self, ns: float) -> float:
        return _LEFT + (ns - self.begin_ns) / (self.end_ns - self.begin_ns) * _COLUMNS


def _timelines(report: TraceReport) -> Iterator[str]:
    recording = report.recording
    if recording.duration_only or not len(recording.table):
        return
    if not recording.shares_clock:
        yield "<p class='dim'>No timeline: the ranks' clocks are not one.</p>"
        return
    begin, end = window_of(recording.table)
    if end <= begin:
        return
    key = "".join(
        f"<span class='key' style='background:var(--{name})'></span>{label}"
        for name, label in (
            ("cpu", "CPU range"),
            ("kernel", "kernel"),
            ("copy", "copy"),
            ("coll", "collective"),
            ("wait", "of it, waiting for a later rank"),
        )
    )
    yield f"<h2>The whole record</h2><p class='dim'>{key}</p>"
    yield _timeline(report, _View(begin, end))
    if zoom := _worst(report, begin, end):
        yield "<h2>The longest wait</h2>"
        yield _timeline(report, zoom, labels=True)


def _worst(report: TraceReport, begin: int, end: int) -> _View | None:
    best: tuple[float, int, int] | None = None
    for w in report.waits:
        depth = np.nan_to_num(w.wait_seconds).max(axis=1)
        i = int(depth.argmax())
        found = (float(depth[i]), int(w.group.start_ns[i].min()), int(w.group.end_ns[i].max()))
        best = max(best, found) if best else found
    if best is None or best[0] <= 0:
        return None
    margin = max((best[2] - best[1]) // 2, 1000)
    view = _View(max(begin, best[1] - margin), min(end, best[2] + margin))
    return view if view.end_ns - view.begin_ns < 0.6 * (end - begin) else None


def _timeline(report: TraceReport, view: _View, labels: bool = False) -> str:
    recording = report.recording
    table = recording.table
    table = table.take((table.end_ns > view.begin_ns) & (table.start_ns < view.end_ns))
    ranks = recording.ranks[:_MOST_RANKS]
    lanes = [lane for lane in _LANES if np.isin(table.kind, lane[2]).any()] or [_LANES[3]]
    height = len(ranks) * (len(lanes) * (_LANE + 2) + 10) + 26
    out = [
        f"<div class='scroll'><svg width='{_LEFT + _COLUMNS + 10}' height='{height}' "
        f"role='img' aria-label='timeline of every rank'>"
    ]
    waits = _wait_rows(report, view)
    y = 4
    for rank in ranks:
        rows = table.take(table.rank == rank)
        out.append(f"<text class='rank' x='0' y='{y + _LANE - 2}'>rank {rank}</text>")
        for _, style, kinds in lanes:
            mine = rows.take(np.isin(rows.kind, kinds))
            out.append(
                f"<rect class='idle' x='{_LEFT}' y='{y}' width='{_COLUMNS}' height='{_LANE}'/>"
            )
            out += _filled(view, mine.start_ns, mine.end_ns, style, y)
            if style == "coll" and rank in waits:
                out += _filled(view, *waits[rank], "wait", y)
            if labels and style in ("cpu", "copy"):
                out += _labels(report, view, mine, y)
            y += _LANE + 2
        y += 10
    out += _axis(view, y)
    out.append("</svg></div>")
    if len(recording.ranks) > len(ranks):
        out.append(f"<p class='dim'>The first {len(ranks)} of {len(recording.ranks)} ranks.</p>")
    return "\n".join(out)


def _wait_rows(report: TraceReport, view: _View) -> dict[int, tuple[t.Int, t.Int]]:
    """By rank, the part of each collective that is wait: from its start on."""
    found: dict[int, list[tuple[t.Int, t.Int]]] = {}
    for w in report.waits:
        wait = np.rint(np.nan_to_num(w.wait_seconds) * 1e9).astype(np.int64)
        for i, rank in enumerate(w.group.ranks):
            start = w.group.start_ns[:, i]
            end = np.minimum(start + wait[:, i], w.group.end_ns[:, i])
            inside = (end > view.begin_ns) & (start < view.end_ns) & (end > start)
            found.setdefault(rank, []).append((start[inside], end[inside]))
    return {
        rank: (np.concatenate([s for s, _ in parts]), np.concatenate([e for _, e in parts]))
        for rank, parts in found.items()
    }


def _filled(view: _View, start: t.Int, end: t.Int, style: str, y: int) -> Iterator[str]:
    """Runs of columns that are about as full, as rectangles of that opacity."""
    if not len(start):
        return
    edges = view.edges()
    union = intervals.union(start, end)
    inside = np.diff(intervals.covered(*union, edges))
    width = np.maximum(np.diff(edges), 1)
    shade: npt.NDArray[np.int64] = np.ceil(inside / width * _SHADES).astype(np.int64)
    changes = np.flatnonzero(np.diff(shade)) + 1
    for begin, finish in zip(
        np.concatenate(([0], changes)), np.concatenate((changes, [len(shade)])), strict=True
    ):
        if shade[begin]:
            yield (
                f"<rect class='{style}' x='{_LEFT + begin}' y='{y}' width='{finish - begin}' "
                f"height='{_LANE}' opacity='{shade[begin] / _SHADES:g}'/>"
            )


def _labels(report: TraceReport, view: _View, rows: t.Table, y: int) -> Iterator[str]:
    """The names of the longest ranges in view, each once, where there is room for them."""
    order = np.argsort(rows.start_ns - rows.end_ns, kind="stable")[:_MOST_LABELS]
    taken: list[tuple[float, float]] = []
    for i in order:
        left = max(view.at(int(rows.start_ns[i])), _LEFT)
        right = min(view.at(int(rows.end_ns[i])), _LEFT + _COLUMNS)
        name = names.plain(report.recording.names[int(rows.name[i])])
        text = short_name(name)[:40]
        needed = 6 * len(text) + 6
        if right - left < needed or any(a < left + needed and left < b for a, b in taken):
            continue
        taken.append((left, left + needed))
        yield f"<text x='{left + 3:.0f}' y='{y + 10}' style='fill:#fff'>{_e(text)}</text>"


def _axis(view: _View, y: int) -> Iterator[str]:
    for part in range(6):
        x = _LEFT + part * _COLUMNS / 5
        at_ms = (view.end_ns - view.begin_ns) * part / 5 / 1e6
        anchor = "start" if part == 0 else "end" if part == 5 else "middle"
        yield f"<text x='{x:.0f}' y='{y + 8}' text-anchor='{anchor}'>{at_ms:.4g} ms</text>"


def _bars(report: TraceReport) -> str:
    """Each rank's wall as work, collectives without the wait, wait, and idle."""
    out, y = [], 2
    ranks = report.profile.ranks[:_MOST_RANKS]
    for rank in ranks:
        out.append(f"<text class='rank' x='0' y='{y + 11}'>rank {rank.rank}</text>")
        out.append(f"<rect class='idle' x='{_LEFT}' y='{y}' width='{_COLUMNS}' height='14'/>")
        x = float(_LEFT)
        for style, seconds in _pieces(rank):
            width = min(seconds / rank.wall_seconds, 1) * _COLUMNS if rank.wall_seconds else 0
            width = min(width, _LEFT + _COLUMNS - x)
            out.append(
                f"<rect class='{style}' x='{x:.1f}' y='{y}' width='{width:.1f}' height='14'>"
                f"<title>{seconds * 1e3:.2f} ms</title></rect>"
            )
            x += width
        y += 19
    key = "".join(
        f"<span class='key' style='background:var(--{name})'></span>{label}"
        for name, label in (
            ("kernel", "work (kernels and copies)"),
            ("coll", "collectives"),
            ("wait", "waiting in them"),
            ("idle", "idle"),
        )
    )
    return (
        f"<p class='dim'>{key}</p><div class='scroll'><svg width='{_LEFT + _COLUMNS + 10}' "
        f"height='{y + 4}' role='img' aria-label='bars'>{''.join(out)}</svg></div>"
    )


def _pieces(rank: RankProfile) -> list[tuple[str, float]]:
    wait = rank.wait_seconds or 0.0
    if rank.busy_seconds is None or rank.work_seconds is None:
        return [("coll", max(rank.collective_seconds - wait, 0.0)), ("wait", wait)]
    alone = max(rank.busy_seconds - rank.work_seconds, 0.0)
    waiting = min(wait, alone)
    return [("kernel", rank.work_seconds), ("coll", alone - waiting), ("wait", waiting)]


def _rank_table(report: TraceReport) -> str:
    head = (
        *("rank", "busy", "work", "collectives", "wait ms", "by duration", "by skew", "apart"),
        *("charged ms", "last", "D2H", "H2D"),
    )
    rows = [
        (
            r.rank,
            share(r.busy_seconds, r.wall_seconds),
            share(r.work_seconds, r.wall_seconds),
            r.collectives,
            milliseconds(r.wait_seconds),
            milliseconds(r.wait_by_duration_seconds),
            milliseconds(r.wait_by_skew_seconds),
            apart(r),
            milliseconds(r.charged_seconds),
            NOT_TOLD if r.last_count is None else r.last_count,
            NOT_TOLD if r.busy_seconds is None else size(r.d2h_bytes),
            NOT_TOLD if r.busy_seconds is None else size(r.h2d_bytes),
        )
        for r in report.profile.ranks
    ]
    return _table(head, rows)


def _gap_table(report: TraceReport) -> str:
    rows = [
        (r.rank, f"{g.start_seconds * 1e3:.3f}", f"{g.seconds * 1e3:.3f}", g.under or NOT_TOLD)
        for r in report.profile.ranks
        for g in r.gaps[:3]
    ]
    rows.sort(key=lambda row: -float(row[2]))
    if not rows:
        return ""
    return "<h2>Longest GPU gaps</h2>" + _table(
        ("rank", "at ms", "gap ms", "CPU range above"), rows[:12], text=(3,)
    )


def _kernel_table(report: TraceReport) -> str:
    rows = [
        (
            short_name(k.name),
            f"{k.gpu_share:.1%}",
            k.calls,
            f"{k.median_seconds * 1e6:.1f}",
            f"{k.blocks:,} x {k.threads}" if k.blocks else NOT_TOLD,
            f"{k.bytes_per_second / 1e9:.3g}" if k.bytes_per_second else NOT_TOLD,
        )
        for k in report.profile.kernels
    ]
    if not rows:
        return ""
    return "<h2>What ran on the GPUs</h2>" + _table(
        ("", "time", "calls", "us a call", "CTAs x threads", "GB/s"), rows, text=(0,)
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], text: Sequence[int] = ()) -> str:
    cells = "".join(
        "<tr>"
        + "".join(
            f"<td class='text' title='{_e(c)}'>{_e(c)}</td>" if i in text else f"<td>{_e(c)}</td>"
            for i, c in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    titles = "".join(f"<th>{_e(h)}</th>" for h in head)
    return f"<div class='scroll'><table><tr>{titles}</tr>{cells}</table></div>"


def _unseen(report: TraceReport) -> str:
    if not report.unseen:
        return ""
    items = "".join(f"<li>{_e(unseen_line(u))}</li>" for u in report.unseen)
    return f"<h2>Unseen</h2><ul>{items}</ul>"
