"""The sharded engine: W = 2, 4, 8, both loadings, one shard or W, both LMCache versions."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.lab.sharded_runs import Cell, Outcome, matrix, run_cell
from tests.lab.soak import results

pytest.importorskip("torch")
pytest.importorskip("lmcache")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3 * 3600)]
COMMAND = "python -m pytest -q -s -m soak tests/lab/soak/test_sharded.py"
HEALTHY_SECONDS = 15
STRAGGLER_SECONDS = 45  # stragglers are decided over 32 s
RATE = 2.0
# Set to go on where a run was cut short: what was right is kept, the rest is run (again).
RESUME = "STALLSCOPE_SOAK_RESUME"


def test_every_cell_loads_the_same_right_bytes_and_nothing_is_found() -> None:
    chosen = list(matrix())
    before = _earlier() if os.environ.get(RESUME) else []
    outcomes = {one.cell: one for one in before if not one.wrong}
    for cell in chosen:
        if cell not in outcomes:
            seconds = STRAGGLER_SECONDS if cell.incident else HEALTHY_SECONDS
            outcomes[cell] = run_cell(cell, seconds, RATE)
            print(outcomes[cell].line(), flush=True)
            _write([outcomes[c] for c in chosen if c in outcomes], len(chosen))
    assert [one.line() for one in outcomes.values() if one.wrong] == []
    for cell, one in outcomes.items():
        assert not (cell.incident and one.undecided), one.undecided


def _earlier() -> list[Outcome]:
    rows: list[dict[str, Any]] = json.loads((results.FOLDER / "sharded.json").read_text())["cells"]
    return [Outcome(**{**row, "cell": Cell(**row["cell"])}) for row in rows]


def _write(outcomes: list[Outcome], cells_in_all: int) -> None:
    """After each cell: a run that is cut short leaves what it had."""
    wrong = sum(bool(one.wrong) for one in outcomes)
    lines = [
        f"{cells_in_all} cells: {len(outcomes) - wrong} right, {wrong} wrong,"
        f" {cells_in_all - len(outcomes)} not run",
        f"healthy cells {HEALTHY_SECONDS} s, with the settings of rank0-store"
        f" {STRAGGLER_SECONDS} s, so that store-skew and straggler-rank are decided",
        "load: processes that want a CPU, for each there is",
        "",
        *(one.line() for one in outcomes),
    ]
    data = {"right": len(outcomes) - wrong, "wrong": wrong}
    data_cells = [one.as_json() for one in outcomes]
    results.write("sharded", COMMAND, lines, {**data, "cells": data_cells})
