"""The five boards, and how one becomes Grafana's JSON."""

from __future__ import annotations

from typing import Any, Final

from dashboards.board_cache import CACHE_BOARD
from dashboards.board_client import CLIENT_BOARD
from dashboards.board_fleet import FLEET_BOARD
from dashboards.board_gates import GATES_BOARD
from dashboards.board_pod import POD_BOARD
from dashboards.metric_names import named_in
from dashboards.model import COLUMNS, SCHEMA_VERSION, TAG, Board, Links, Row, link

BOARDS: Final[tuple[Board, ...]] = (
    FLEET_BOARD,
    POD_BOARD,
    CACHE_BOARD,
    CLIENT_BOARD,
    GATES_BOARD,
)


def build(board: Board, links: Links) -> dict[str, Any]:
    """The board's JSON, in the shape that Grafana exports and imports."""
    return {
        "annotations": {"list": []},
        "description": board.description,
        "editable": False,  # it is changed in code; a copy may be edited
        "graphTooltip": 1,
        "id": None,
        "links": [link("Stallscope", "")],
        "panels": _panels(board, links),
        "refresh": "30s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": [TAG],
        "templating": {"list": [variable.build() for variable in board.variables]},
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "title": board.title,
        "uid": board.uid,
        "version": 0,
    }


def _panels(board: Board, links: Links) -> list[dict[str, Any]]:
    built: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        built.append(_row(row, len(built) + 1, y))
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            metrics = named_in(target.expr for target in panel.targets)
            built.append(panel.build(len(built) + 1, x, y, metrics, links))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return built


def _row(row: Row, number: int, y: int) -> dict[str, Any]:
    return {
        "collapsed": False,
        "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
        "id": number,
        "panels": [],
        "title": row.title,
        "type": "row",
    }
