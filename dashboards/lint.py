"""What holds for every board and rule, told without a server: each offence is one line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from dashboards.boards import BOARDS
from dashboards.durations import Scale
from dashboards.metric_names import named_in
from dashboards.model import Board, Panel
from dashboards.recording import SERIES_A_POD
from dashboards.rule_files import groups
from dashboards.rule_model import Alert, Recording

MOST_UID: Final = 40  # characters, by Grafana's API
# Units by Grafana's ids; another one would show a bare number.
UNITS: Final = frozenset(
    ("Bps", "bool_yes_no", "ops", "percentunit", "reqps", "s", "short", "bytes")
)
# Windows of rates in boards follow the time range; fixed ones are for rules.
_RANGE: Final = re.compile(r"\[([^\]]+)\]")
_VARIABLE: Final = re.compile(r"\$(\w+)|\$\{(\w+)\}")
_HIDES_ABSENCE: Final = re.compile(r"\bor\s+vector\s*\(", re.IGNORECASE)
_BUILT_IN: Final = frozenset(("__rate_interval",))
_RECORD: Final = re.compile(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+")


def offences(pages: Collection[str]) -> list[str]:
    """All of them. `pages` are the names of the runbook pages that exist."""
    found = [text for board in BOARDS for text in board_offences(board, pages)]
    for name in ("uid", "title"):
        values = [getattr(board, name) for board in BOARDS]
        found += [f"{name} {v!r} is used twice" for v in sorted({*values}) if values.count(v) > 1]
    return [*found, *rule_offences(pages)]


def board_offences(board: Board, pages: Collection[str]) -> Iterator[str]:
    """Those of one board."""
    declared = {variable.name for variable in board.variables}
    queries = [t.expr for panel in board.panels() for t in panel.targets]
    asked = [variable.query for variable in board.variables]
    used = {a or b for text in (*queries, *asked) for a, b in _VARIABLE.findall(text)} - _BUILT_IN
    if not 0 < len(board.uid) <= MOST_UID:
        yield f"{board.uid}: a uid has 1 to {MOST_UID} characters"
    for name in sorted(used - declared):
        yield f"{board.uid}: ${name} is used and not declared"
    for name in sorted(declared - used - {"datasource"}):
        yield f"{board.uid}: ${name} is declared and not used"
    if "datasource" not in declared:
        yield f"{board.uid}: no variable for the data source"
    titles = [panel.title for panel in board.panels()]
    for title in sorted({t for t in titles if titles.count(t) > 1}):
        yield f"{board.uid}: two panels are called {title!r}"
    for panel in board.panels():
        for text in _panel_offences(panel, pages):
            yield f"{board.uid}: {panel.title}: {text}"


def _panel_offences(panel: Panel, pages: Collection[str]) -> Iterator[str]:
    if not panel.targets:
        yield "no query"
    if not panel.title or not panel.shows.endswith(".") or not panel.good.endswith("."):
        yield "title, what it shows or what good looks like is missing or no sentence"
    if panel.unit not in UNITS:
        yield f"unit {panel.unit!r} is not one of Grafana's that we use"
    if bool(panel.moves_in) == bool(panel.still):
        yield "say either which incident moves it, or why none does"
    if panel.moves_in and panel.healthy is None:
        yield "an incident moves it, but no healthy range says from where"
    for name in panel.runbooks:
        if name not in pages:
            yield f"there is no runbook page {name}"
    for target in panel.targets:
        yield from _query_offences(target.expr)
        for window in _RANGE.findall(target.expr):
            if window != "$__rate_interval":
                yield f"[{window}] is a fixed window; use $__rate_interval"


def rule_offences(pages: Collection[str]) -> Iterator[str]:
    """Those of the rules."""
    recorded: list[str] = []
    series = 0
    for group in groups(Scale()):
        for rule in group.rules:
            name = rule.record if isinstance(rule, Recording) else rule.name
            for text in _query_offences(rule.expr):
                yield f"{name}: {text}"
            if isinstance(rule, Recording):
                recorded.append(name)
                series += rule.series_a_pod
                if not _RECORD.fullmatch(name):
                    yield f"{name}: is not named level:metric:operation"
            else:
                yield from _alert_offences(rule, pages)
    for name in sorted({n for n in recorded if recorded.count(n) > 1}):
        yield f"{name}: is recorded twice"
    if series > SERIES_A_POD:
        yield f"{series} recorded series a pod, and at most {SERIES_A_POD} are allowed"


def _alert_offences(alert: Alert, pages: Collection[str]) -> Iterator[str]:
    if not alert.summary or not alert.description:
        yield f"{alert.name}: no summary or no description"
    if alert.severity != "none" and alert.runbook not in pages:
        yield f"{alert.name}: there is no runbook page {alert.runbook!r}"
    if not alert.severity and "severity" not in alert.expr:
        yield f"{alert.name}: no severity"


def _query_offences(query: str) -> Iterator[str]:
    if _HIDES_ABSENCE.search(query):
        yield "`or vector()` shows 0 where nothing is seen"
    if not named_in([query]) and query != "vector(1)":
        yield f"names no metric that anything emits: {query}"
