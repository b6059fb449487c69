"""The linter says what is wrong, with the board, the panel and the offence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboards import lint
from dashboards.board_pod import POD_BOARD
from dashboards.model import Panel, Row, Target

PAGES = frozenset({"straggler-rank"})
GOOD = Panel(
    title="Wait",
    targets=(Target('stallscope_tick_age_seconds{cluster=~"$cluster"}'),),
    unit="s",
    shows="What it shows.",
    good="0.",
    still="it stands still",
)
VARIABLES = tuple(v for v in POD_BOARD.variables if v.name in {"datasource", "cluster"})
BOARD = replace(POD_BOARD, variables=VARIABLES, rows=(Row("a row", (GOOD,)),))


def offences(**changes):
    panel = replace(GOOD, **changes)
    board = replace(BOARD, rows=(Row("a row", (panel,)),))
    return list(lint.board_offences(board, PAGES))


def query(text):
    return {"targets": (Target(text + ' and up{cluster=~"$cluster"}'),)}


def test_a_good_board_has_none():
    assert list(lint.board_offences(BOARD, PAGES)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (query("up or vector(0)"), "shows 0 where nothing is seen"),
        (query("up OR  vector (0)"), "shows 0 where nothing is seen"),
        (
            {"targets": (Target('nobody_emits{c="$cluster"}'),)},
            "names no metric that anything emits",
        ),
        (query("rate(stallscope_ticks_total[5m])"), "[5m] is a fixed window"),
        (query('up{a="$region"}'), "$region is used and not declared"),
        ({"targets": (Target("up"),)}, "$cluster is declared and not used"),
        ({"targets": ()}, "no query"),
        ({"unit": "seconds"}, "unit 'seconds'"),
        ({"good": "zero"}, "is missing or no sentence"),
        ({"still": ""}, "say either"),
        ({"still": "", "moves_in": ("slow-rank",)}, "no healthy range"),
        ({"runbooks": ("no-page",)}, "there is no runbook page no-page"),
    ],
)
def test_each_offence_is_named(changes, said):
    found = offences(**changes)
    assert any(said in text for text in found), found


def test_uids_titles_and_sources():
    long = replace(BOARD, uid="x" * 41)
    assert any("1 to 40" in text for text in lint.board_offences(long, PAGES))
    twice = replace(BOARD, rows=(Row("a row", (GOOD, GOOD)),))
    assert any("two panels" in text for text in lint.board_offences(twice, PAGES))
    bare = replace(BOARD, variables=BOARD.variables[1:])
    assert any("data source" in text for text in lint.board_offences(bare, PAGES))


def test_an_alert_without_a_page_is_named():
    assert any("there is no runbook page" in text for text in lint.rule_offences(()))
