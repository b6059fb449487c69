"""A run as one HTML file for people: no script, no font, no picture from anywhere else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from html import escape
from typing import Any, Final

from lab.charts import Panel, Rows, grouped_bars
from lab.history import Moment
from lab.report_style import STYLE

_HUES: Final = 8
_SATURATED: Final = 0.85  # from where a shard's main thread is called saturated
_MEGA: Final = 1e6
_LEAST_SPAN_SECONDS: Final = 0.5


def render(report: dict[str, Any], moments: Sequence[Moment]) -> str:
    """The page of a report (as `report.build` gives it) and the ticks of its run."""
    onset, name = report["incident_seconds"], report["incident"] or ""
    begun = (onset, f"{name} began")
    seconds = max(report["wall_seconds"], moments[-1].at_seconds if moments else 0.0, 1.0)
    title = f"{name or 'healthy'}: a lab run of {report['ranks']} ranks"
    ttft = _ttft(report, seconds)
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_facts(report))}</p>",
        _tiles(report),
        _section(
            "Time to first token",
            "each dot one request, at the time it arrived",
            ttft.svg(*begun),
            [
                ("s0", "some of its KV was loaded"),
                ("s1", "all computed"),
                ("open", "still waiting at the end"),
            ],
        ),
        _section(
            "Wait per rank",
            "share of each second that a rank stood in a collective waiting for another; the one "
            "that waits least is the late one",
            _waits(moments, report["ranks"], seconds).svg(*begun),
        ),
        _section(
            "Bytes per rank and tier",
            "in MB over the whole run: stored into the CPU tier (L1), loaded from it, loaded from "
            "the shard (L2)",
            _bytes(moments, report["ranks"]),
            [("s2", "stored"), ("s0", "loaded from L1"), ("s1", "loaded from L2")],
        ),
        _section(
            "Shard saturation",
            "share of each second that a shard's main thread was active; shaded where it gave no "
            "answer",
            _shards(report, moments, seconds).svg(*begun),
        ),
        _section(
            "Findings",
            "from when each was first named to when it was last",
            _findings(moments, report, seconds).svg(*begun),
        ),
        _finding_table(report),
        "<h2>Ranks</h2>",
        _rank_table(report),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _facts(report: dict[str, Any]) -> str:
    stated = report["stated"]
    shards = f"{report['shards']} Valkey server" + ("s" if report["shards"] > 1 else "")
    loading = "asynchronous" if stated["async_loading"] else "synchronous"
    return (
        f"engine {report['engine']}, LMCache {stated['lmcache']}, {loading} loading, {shards}, "
        f"{report['wall_seconds']:.0f} s, prefill {stated['prefill_rate']:,.0f} tokens/s, "
        f"{stated['chunk_bytes'] >> 10} KiB a chunk, seed {stated['seed']}"
    )


def _tiles(report: dict[str, Any]) -> str:
    requests, faults = report["requests"], report["stock_faults"]
    ttft = requests["ttft_seconds"]
    right = report["bytes_equal"]
    loaded = requests["source"]["l1_tokens"] + requests["source"]["l2_tokens"]
    said = "all right" if right else "WRONG" if loaded and not faults["stalled_steps"] else "none"
    tiles = [
        (f"{requests['count']}", f"requests done, {requests['unfinished']} unfinished", False),
        (_seconds(ttft["p50"]), "TTFT p50", False),
        (_seconds(ttft["p99"]), "TTFT p99", False),
        (said, "loaded bytes, compared on each rank", said == "WRONG"),
        (
            f"{len(report['findings'])}",
            "findings at the end of the run",
            bool(report["findings"]),
        ),
    ]
    if faults["lost_completions"]:
        tiles.append((f"{faults['lost_completions']}", "completions lost by the client", True))
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile{" bad" if bad else ""}"><b>{escape(figure)}</b>'
            f"<span>{escape(what)}</span></div>"
            for figure, what, bad in tiles
        )
        + "</div>"
    )


def _section(title: str, says: str, svg: str, keys: Sequence[tuple[str, str]] = ()) -> str:
    legend = "".join(
        f'<span class="key"><i class="{style}"></i>{escape(name)}</span>' for style, name in keys
    )
    return f"<h2>{escape(title)}</h2><p>{escape(says)}</p>{legend}{svg}"


def _ttft(report: dict[str, Any], seconds: float) -> Panel:
    rows = report["requests"]["each"]
    waiting = [(at, seconds - at) for at in report["requests"]["unfinished_arrival_seconds"]]
    most = max([1e-3, *(row["ttft_seconds"] for row in rows), *(age for _, age in waiting)])
    panel = Panel(210, seconds, most, " s", "time to first token over time")
    for style, is_hit in (("s0", True), ("s1", False)):
        panel.dots(
            (
                (
                    row["arrival_seconds"],
                    row["ttft_seconds"],
                    f"{row['id']}: {row['ttft_seconds']:.2f} s, {row['tokens']:,} tokens, of them "
                    f"{row['source']['l1']:,} from L1, {row['source']['l2']:,} from L2",
                )
                for row in rows
                if (row["source"]["l1"] + row["source"]["l2"] > 0) == is_hit
            ),
            style,
        )
    panel.dots(((at, age, f"waiting for {age:.1f} s") for at, age in waiting), "open")
    return panel


def _waits(moments: Sequence[Moment], ranks: int, seconds: float) -> Panel:
    lines = [_share(moments, rank) for rank in range(ranks)]
    most = max((value for line in lines for _, value in line), default=0.0)
    panel = Panel(180, seconds, max(most, 0.01) * 100, "%", "wait per rank over time")
    for rank, line in enumerate(lines):
        panel.line([(at, value * 100) for at, value in line], f"s{rank % _HUES}", f"rank {rank}")
    return panel


def _spans(moments: Sequence[Moment]) -> list[tuple[Moment, Moment]]:
    """Neighbouring ticks; the last may follow at once, and says nothing about a second then."""
    pairs = itertools.pairwise(moments)
    return [(a, b) for a, b in pairs if b.at_seconds - a.at_seconds >= _LEAST_SPAN_SECONDS]


def _share(moments: Sequence[Moment], rank: int) -> list[tuple[float, float]]:
    """The wait of one rank in each tick, as a share of the tick."""
    points = []
    for before, now in _spans(moments):
        wait = now.ranks[rank].wait_seconds - before.ranks[rank].wait_seconds
        points.append((now.at_seconds, wait / (now.at_seconds - before.at_seconds)))
    return points


def _bytes(moments: Sequence[Moment], ranks: int) -> str:
    last = moments[-1].ranks if moments else ()
    groups = [
        (f"rank {rank}", (row.store_bytes / _MEGA, row.l1_bytes / _MEGA, row.l2_bytes / _MEGA))
        for rank, row in enumerate(last[:ranks])
    ]
    return grouped_bars("bytes per rank and tier", groups, ("s2", "s0", "s1"), " MB")


def _shards(report: dict[str, Any], moments: Sequence[Moment], seconds: float) -> Panel:
    panel = Panel(160, seconds, 100.0, "%", "shard saturation over time")
    panel.limit(_SATURATED * 100, "saturated from here on")
    for shard, url in enumerate(report["shard_urls"] if moments else ()):
        points = []
        for before, now in _spans(moments):
            busy, then = now.shards[shard].busy_seconds, before.shards[shard].busy_seconds
            span = now.at_seconds - before.at_seconds
            share = math.nan if busy is None or then is None else max(busy - then, 0.0) / span
            points.append((now.at_seconds, share * 100))
            if not now.shards[shard].is_up:
                says = f"{url} gave no answer"
                panel.band(before.at_seconds, now.at_seconds, "down", says)
        panel.line(points, f"s{shard % _HUES}", "shard " + url[url.rindex(":") :])
    return panel


def _findings(moments: Sequence[Moment], report: dict[str, Any], seconds: float) -> Rows:
    """A bar for each finding, from the first tick that named it to the last."""
    spans: dict[tuple[str, str], list[Any]] = {}
    for now in moments:
        for name, where, severity in now.findings:
            span = spans.setdefault((name, where), [now.at_seconds, now.at_seconds, severity])
            span[1] = now.at_seconds
            span[2] = severity
    rows = Rows(seconds, "findings over time")
    for (name, where), (begin, end, severity) in spans.items():
        says = f"{severity}: {name}, {where}, first named after {begin:.1f} s"
        rows.rows.append((f"{name} · {where}", begin, end, severity, says))
    return rows


def _finding_table(report: dict[str, Any]) -> str:
    if not report["findings"]:
        return ""
    rows = "".join(
        f"<tr><td>{escape(f['severity'])}</td><td><b>{escape(f['id'])}</b></td>"
        f"<td>{escape(f['summary'])}</td>"
        f"<td><code>stallscope runbook {escape(f['id'])}</code></td></tr>"
        for f in report["findings"]
    )
    return f"<table><tr><th></th><th>finding</th><th>says</th><th>next</th></tr>{rows}</table>"


def _rank_table(report: dict[str, Any]) -> str:
    head = "".join(
        f'<th class="n">{name}</th>'
        for name in ("rank", "waited s", "charged s", "last at", "stored MB", "loaded MB")
    )
    rows = "".join(
        f'<tr><td class="n">{row["rank"]}</td><td class="n">{row["wait_seconds"]:.2f}</td>'
        f'<td class="n">{row["charged_seconds"]:.2f}</td>'
        f'<td class="n">{row["stamped_last_share"]:.0%}</td>'
        f'<td class="n">{row["store_bytes"] / _MEGA:.1f}</td>'
        f'<td class="n">{row["load_bytes"] / _MEGA:.1f}</td></tr>'
        for row in report["per_rank"]
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
