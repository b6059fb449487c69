"""Draws each panel from its own query results, so that a board can be looked at without Grafana."""

from __future__ import annotations

import base64
import html
import io
import json
import math
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dashboards.metric_names import named_in
from dashboards.model import Board, Panel, Target

_TIMEOUT_SECONDS: Final = 30.0
_POINTS: Final = 120
_MOST_LEGENDS: Final = 10
_MOST_ROWS: Final = 14
_WIDE_LEGEND: Final = 32  # characters
_VARIABLE: Final = re.compile(r"\$\{?(\w+)\}?")
_LABEL: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")
Labels = Mapping[str, str]


class PreviewError(Exception):
    """Prometheus could not be asked: what, where and the mend, in one line."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel: its legend, its labels, and (seconds since the epoch, value) points."""

    legend: str
    labels: Labels
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A panel and what its queries brought; `fault` is why one of them brought nothing."""

    panel: Panel
    series: tuple[Series, ...]
    fault: str = ""

    def values(self) -> list[float]:
        return [value for s in self.series for _, value in s.points if not math.isnan(value)]


class Prometheus:
    """Asks a server's query API."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise PreviewError(f"{url!r} is not a URL such as http://prometheus:9090")
        self._url = url.rstrip("/")

    def range(self, query: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """A matrix. Raises PreviewError."""
        return self._ask("query_range", query=query, start=start, end=end, step=step)

    def at(self, query: str, moment: float) -> list[dict[str, Any]]:
        """A vector. Raises PreviewError."""
        return self._ask("query", query=query, time=moment)

    def _ask(self, name: str, **arguments: object) -> list[dict[str, Any]]:
        asked = f"{self._url}/api/v1/{name}"
        form = urllib.parse.urlencode(arguments).encode()
        try:
            with urllib.request.urlopen(asked, form, timeout=_TIMEOUT_SECONDS) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise PreviewError(f"{self._url}: HTTP {error.code}: {_said(error)}") from None
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "reason", error)
            raise PreviewError(f"{self._url}: cannot be asked: {reason}") from None
        except ValueError:
            raise PreviewError(f"{self._url}: does not answer like Prometheus") from None
        data = found.get("data") if isinstance(found, dict) else None
        result = data.get("result") if isinstance(data, dict) else None
        if not isinstance(result, list):
            raise PreviewError(f"{self._url}: does not answer like Prometheus")
        return result


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])[:200]
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)


def filled(query: str, interval: str, chosen: Mapping[str, str]) -> str:
    """The query with its variables filled in; one that is not chosen is all."""

    def value(match: re.Match[str]) -> str:
        return interval if match[1] == "__rate_interval" else chosen.get(match[1], ".*")

    return _VARIABLE.sub(value, query)


def ask(
    server: Prometheus, panel: Panel, end: float, seconds: float, interval: str, chosen: Labels
) -> Drawn:
    """All queries of a panel over the last `seconds`. Raises PreviewError where nothing answers."""
    found: list[Series] = []
    for target in panel.targets:
        query = filled(target.expr, interval, chosen)
        if panel.instant:
            rows = server.at(query, end)
            pairs = [(row["metric"], [row["value"]]) for row in rows]
        else:
            step = max(1.0, seconds / _POINTS)
            rows = server.range(query, end - seconds, end, step)
            pairs = [(row["metric"], row["values"]) for row in rows]
        found += [_series(target, labels, points) for labels, points in pairs]
    return Drawn(panel, tuple(found))


def _series(target: Target, labels: Labels, points: Iterable[Sequence[Any]]) -> Series:
    return Series(
        _legend(target, labels), labels, tuple((float(at), float(value)) for at, value in points)
    )


def _legend(target: Target, labels: Labels) -> str:
    if target.legend:
        return _LABEL.sub(lambda match: labels.get(match[1], ""), target.legend) or "value"
    named = [f"{k}={v}" for k, v in sorted(labels.items()) if k != "__name__" and v]
    return " ".join(named) or "value"


def png(drawn: Drawn) -> bytes:
    """One panel as a PNG. Raises ImportError without matplotlib."""
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False}):  # a label may hold a dollar
        return _drawn(drawn)


def _drawn(drawn: Drawn) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panel = drawn.panel
    figure = Figure(figsize=(panel.width * 0.45, panel.height * 0.42 + 0.6), dpi=80)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(panel.title, fontsize=9, loc="left", wrap=True)
    if not drawn.values():
        axes.axis("off")
        axes.text(0.5, 0.5, panel.no_value, ha="center", va="center", color="0.4")
    elif panel.kind == "table":
        _table(axes, drawn)
    elif panel.kind == "stat":
        _stat(axes, drawn)
    elif panel.kind == "state-timeline":
        _states(axes, drawn)
    else:
        _lines(axes, drawn)
    out = io.BytesIO()
    figure.savefig(out, format="png", bbox_inches="tight")
    return out.getvalue()


def _lines(axes: Any, drawn: Drawn) -> None:
    start = min(at for s in drawn.series for at, _ in s.points)
    ordered = sorted(drawn.series, key=lambda s: -max((v for _, v in s.points), default=0.0))
    for number, series in enumerate(ordered):
        label = series.legend if number < _MOST_LEGENDS else None
        times = [at - start for at, _ in series.points]
        axes.plot(times, [v for _, v in series.points], label=label, linewidth=1)
    _limits(axes, drawn.panel)
    axes.set_xlabel("seconds", fontsize=7)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, drawn.panel.unit))
    columns = 1 if any(len(s.legend) > _WIDE_LEGEND for s in ordered) else 2
    axes.legend(
        fontsize=6, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=columns, frameon=False
    )


def _limits(axes: Any, panel: Panel) -> None:
    if panel.healthy is not None:
        for limit in (panel.healthy.low, panel.healthy.high):
            if limit is not None:
                axes.axhline(limit, color="red", linestyle="--", linewidth=0.8)
    if panel.low is not None:
        axes.set_ylim(bottom=panel.low)


def _stat(axes: Any, drawn: Drawn) -> None:
    axes.axis("off")
    value = drawn.series[0].points[-1][1]
    axes.text(0.5, 0.5, shown(value, drawn.panel.unit), ha="center", va="center", fontsize=28)


def _states(axes: Any, drawn: Drawn) -> None:
    start = min(at for s in drawn.series for at, _ in s.points)
    for row, series in enumerate(drawn.series):
        for at, value in series.points:
            colour = "tab:red" if _is_bad(drawn.panel, value) else "tab:green"
            axes.barh(row, 1.5, left=at - start, color=colour, height=0.8)
    axes.set_yticks(range(len(drawn.series)), [s.legend for s in drawn.series], fontsize=7)
    axes.set_xlabel("seconds", fontsize=7)
    axes.tick_params(labelsize=7)


def _is_bad(panel: Panel, value: float) -> bool:
    return panel.healthy is not None and not panel.healthy.holds(value)


def _table(axes: Any, drawn: Drawn) -> None:
    axes.axis("off")
    names = sorted({k for s in drawn.series for k, v in s.labels.items() if v} - {"__name__"})
    has_value = "Value" not in drawn.panel.hidden
    heading = [*names, *(["value"] if has_value else [])]
    rows = [
        [s.labels.get(name, "") for name in names]
        + ([shown(s.points[-1][1], drawn.panel.unit)] if has_value else [])
        for s in drawn.series
    ]
    table = axes.table(cellText=rows[:_MOST_ROWS], colLabels=heading, loc="upper center")
    table.auto_set_font_size(False)
    table.set_fontsize(6)
    table.auto_set_column_width(list(range(len(heading))))


_SIZES: Final = (("G", 1e9), ("M", 1e6), ("k", 1e3))
_SUFFIX: Final = {"s": " s", "Bps": "B/s", "ops": "/s", "reqps": "/s", "bytes": "B"}


def shown(value: float, unit: str) -> str:
    """A value in its unit, as short as it reads."""
    if unit == "percentunit":
        return f"{value * 100:.3g}%"
    if unit == "bool_yes_no":
        return "yes" if value else "no"
    if unit != "s":
        for letter, size in _SIZES:
            if abs(value) >= size:
                return f"{value / size:.3g} {letter}{_SUFFIX.get(unit, '')}"
    return f"{value:.4g}{_SUFFIX.get(unit, '')}"


def write(folder: Path, board: Board, panels: Sequence[Drawn]) -> Path:
    """One HTML page with every panel as a PNG beside it; its path. Raises OSError, ImportError."""
    pictures = folder / board.uid
    pictures.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, drawn in enumerate(panels, 1):
        data = png(drawn)
        (pictures / f"{number:02}.png").write_bytes(data)
        parts.append(_figure(drawn, base64.b64encode(data).decode()))
    page = folder / f"{board.uid}.html"
    page.write_text(
        _PAGE.format(title=html.escape(board.title), body="\n".join(parts)), encoding="utf-8"
    )
    return page


_PAGE: Final = """<!doctype html><meta charset="utf-8"><title>{title}</title>
<style>body{{font:14px sans-serif;margin:1em}}figure{{display:inline-block;margin:.5em;
vertical-align:top;border:1px solid #ccc;max-width:48em}}figcaption{{padding:.5em;color:#333;
font-size:12px}}code{{color:#555}}</style><h1>{title}</h1>
{body}
"""


def _figure(drawn: Drawn, data: str) -> str:
    panel = drawn.panel
    queries = "<br>".join(f"<code>{html.escape(t.expr)}</code>" for t in panel.targets)
    names = ", ".join(named_in(t.expr for t in panel.targets))
    return (
        f'<figure><img alt="{html.escape(panel.title)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{html.escape(panel.shows)}<br><b>Good:</b> {html.escape(panel.good)}<br>"
        f"{html.escape(names)}<details><summary>query</summary>{queries}</details></figcaption>"
        "</figure>"
    )
