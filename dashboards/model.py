"""Grafana's dashboard JSON as typed values: what our boards use of it, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

SCHEMA_VERSION: Final = 39
COLUMNS: Final = 24
TAG: Final = "stallscope"
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_GREEN, _RED, _TRANSPARENT = "green", "red", "transparent"

PanelKind = Literal["timeseries", "stat", "table", "state-timeline", "bargauge"]


@dataclass(frozen=True, slots=True)
class Healthy:
    """Where a panel's values lie while nothing is wrong: low <= value <= high, None is unbounded.

    `absent` says that no value at all is healthy too; with neither bound it is the only healthy
    state.
    """

    low: float | None = None
    high: float | None = None
    absent: bool = False

    def holds(self, value: float) -> bool:
        if self.absent and self.low is None and self.high is None:
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


@dataclass(frozen=True, slots=True)
class Target:
    """One query. `legend` is Grafana's template of labels."""

    expr: str
    legend: str = ""

    def build(self, letter: str, instant: bool) -> dict[str, Any]:
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": self.expr,
            "format": "table" if instant else "time_series",
            "instant": instant,
            "legendFormat": self.legend or "__auto",
            "range": not instant,
            "refId": letter,
        }


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `shows` is what it says and `good` what it says while all is well; the metrics
    are named by the builder. `moves_in` are the lab's incidents in which a value leaves
    `healthy`; where it is empty, `still` says why none of them moves it.
    """

    title: str
    targets: tuple[Target, ...]
    unit: str
    shows: str
    good: str
    kind: PanelKind = "timeseries"
    width: int = 12
    height: int = 8
    healthy: Healthy | None = None
    moves_in: tuple[str, ...] = ()
    still: str = ""
    runbooks: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    hidden: tuple[str, ...] = ()
    no_value: str = "No data: see Sources"
    stacked: bool = False

    @property
    def instant(self) -> bool:
        """Whether the panel shows this moment and no history."""
        return self.kind in {"table", "bargauge"}

    def thresholds(self) -> dict[str, Any]:
        """The healthy range as coloured steps, from minus infinity up."""
        steps: list[dict[str, Any]] = [{"color": _GREEN, "value": None}]
        if self.healthy is not None:
            if self.healthy.low is not None:
                steps = [
                    {"color": _RED, "value": None},
                    {"color": _GREEN, "value": self.healthy.low},
                ]
            if self.healthy.high is not None:
                # A step begins at its value, and a value at the limit is healthy.
                steps.append({"color": _RED, "value": _above(self.healthy.high)})
        return {"mode": "absolute", "steps": steps}

    def build(self, number: int, x: int, y: int, metrics: Sequence[str], links: Links) -> Any:
        defaults: dict[str, Any] = {
            "color": {"mode": "palette-classic"},
            "noValue": self.no_value,
            "thresholds": self.thresholds(),
            "unit": self.unit,
        }
        if self.kind in {"stat", "bargauge", "state-timeline"}:
            defaults["color"] = {"mode": "thresholds"}
        if self.low is not None:
            defaults["min"] = self.low
        if self.high is not None:
            defaults["max"] = self.high
        if self.kind == "timeseries":
            defaults["custom"] = _curve(self.stacked, self.healthy)
        built = {
            "datasource": DATASOURCE,
            "description": self.description(metrics),
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "id": number,
            "links": [links.runbook(name) for name in self.runbooks],
            "options": _OPTIONS[self.kind],
            "targets": [
                t.build(chr(ord("A") + i), self.instant) for i, t in enumerate(self.targets)
            ],
            "title": self.title,
            "type": self.kind,
        }
        if self.kind == "table":
            built["transformations"] = [_organize(self.hidden)]
        return built

    def description(self, metrics: Sequence[str]) -> str:
        """What it shows, what good looks like, and the metrics it comes from."""
        named = ", ".join(f"`{name}`" for name in metrics)
        return f"{self.shows}\n\n**Good:** {self.good}\n\nFrom {named}."


@dataclass(frozen=True, slots=True)
class Links:
    """Where runbook pages are read."""

    base: str

    def url(self, name: str) -> str:
        return f"{self.base.rstrip('/')}/{name}.md"

    def runbook(self, name: str) -> dict[str, Any]:
        return link(f"Runbook: {name}", self.url(name))


def link(title: str, url: str) -> dict[str, Any]:
    """A link of a panel; without a URL, one of a board to all others of ours."""
    is_to_boards = not url
    return {
        "asDropdown": False,
        "icon": "external link",
        "includeVars": is_to_boards,  # what is chosen here stays chosen there
        "keepTime": is_to_boards,
        "tags": [TAG] if is_to_boards else [],
        "targetBlank": not is_to_boards,
        "title": title,
        "tooltip": "",
        "type": "dashboards" if is_to_boards else "link",
        "url": url,
    }


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a board, filled by `query`; "All" takes series that lack the label too."""

    name: str
    label: str
    query: str = ""

    def build(self) -> dict[str, Any]:
        if self.name == "datasource":
            return {
                "label": self.label,
                "name": self.name,
                "query": "prometheus",
                "refresh": 1,
                "type": "datasource",
            }
        return {
            "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            "datasource": DATASOURCE,
            "includeAll": True,
            "label": self.label,
            "multi": True,
            "name": self.name,
            "query": {"query": self.query, "refId": self.name},
            "refresh": 2,  # on time range change: an engine of yesterday has to be found
            "sort": 3,  # numerical: rank 10 after rank 9
            "type": "query",
        }


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. `uid` is for ever: links and publishing go by it."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    runbooks: tuple[str, ...] = field(default=())

    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]


def to_json(value: Any) -> str:
    """Stable text: keys sorted, one final newline."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _above(limit: float) -> float:
    return float(f"{limit * 1.000001:.9g}") if limit else 1e-9


def _curve(stacked: bool, healthy: Healthy | None) -> dict[str, Any]:
    shown = healthy is not None and (healthy.low is not None or healthy.high is not None)
    return {
        "drawStyle": "line",
        "fillOpacity": 20 if stacked else 0,
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
        "thresholdsStyle": {"mode": "dashed" if shown else "off"},
    }


def _organize(hidden: Sequence[str]) -> dict[str, Any]:
    excluded = dict.fromkeys(sorted({"Time", *hidden}), True)
    return {"id": "organize", "options": {"excludeByName": excluded}}


_LEGEND: Final = {
    "calcs": ["lastNotNull", "max"],
    "displayMode": "table",
    "placement": "bottom",
    "showLegend": True,
}
_REDUCE: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: Final[dict[PanelKind, dict[str, Any]]] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": _REDUCE,
        "showPercentChange": False,
        "textMode": "auto",
        "wideLayout": True,
    },
    "bargauge": {
        "displayMode": "basic",
        "orientation": "horizontal",
        "reduceOptions": _REDUCE,
    },
    "table": {"showHeader": True},
    "state-timeline": {
        "legend": _LEGEND,
        "mergeValues": True,
        "rowHeight": 0.9,
        "showValue": "never",
        "tooltip": {"mode": "multi", "sort": "none"},
    },
}
