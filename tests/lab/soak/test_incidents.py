"""Every client incident, both rank counts, both loadings, three seeds, both LMCache versions."""

from __future__ import annotations

import json
import os

import pytest

from tests.lab.incident_cells import NAMED_WITHIN_SECONDS, TRIES, Answer, Cell, cells, run_cell
from tests.lab.soak import results

pytest.importorskip("torch")
pytest.importorskip("lmcache")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3 * 3600)]
COMMAND = "python -m pytest -q -s -m soak tests/lab/soak/test_incidents.py"
SEEDS = (0, 1, 2)
# Set to go on where a run was cut short: what was right in time is kept, the rest is run (again).
RESUME = "STALLSCOPE_SOAK_RESUME"


def test_each_incident_is_named_first_with_its_cause_and_place() -> None:
    chosen = list(cells((2, 4), SEEDS, ("0.5.5", "0.5.6")))
    before = _earlier() if os.environ.get(RESUME) else []
    answers = {a.cell: a for a in before if a.is_right and not a.is_late}
    again = [a for a in before if a.cell not in answers]
    tried = {a.cell for a in again}
    for cell in sorted(chosen, key=lambda c: c in tried):  # what was never run comes first
        if cell not in answers:
            answers[cell] = run_cell(cell)
            print(answers[cell].line(), flush=True)
            _write([answers[c] for c in chosen if c in answers], again, len(chosen))
    assert [a.line() for a in answers.values() if not a.is_right or a.is_late] == []


def _earlier() -> list[Answer]:
    """The answers in the result file."""
    text = (results.FOLDER / "incidents.json").read_text()
    rows = [*json.loads(text)["answers"], *json.loads(text)["run_again"]]
    return [Answer(**{**row, "cell": Cell(**row["cell"])}) for row in rows]


def _write(answers: list[Answer], again: list[Answer], cells_in_all: int) -> None:
    """After each cell: a run that is cut short leaves what it had."""
    right = sum(a.is_right and not a.is_late for a in answers)
    late = sum(a.is_right and a.is_late for a in answers)
    repeated = sum(a.struck for a in (*answers, *again))
    lines = [
        f"{cells_in_all} cells: {right} right, {late} right but late, "
        f"{sum(not a.is_right for a in answers)} wrong, {cells_in_all - len(answers)} not run",
        f"{repeated} runs were made again because the stock client lost a completion by itself "
        f"before the incident began (upstream #5547; at most {TRIES} tries a cell)",
        f"seconds: from when the fault can be told to diagnose's answer, limit "
        f"{NAMED_WITHIN_SECONDS:g}; load: processes that want a CPU, for each there is",
        "",
        *(a.line() for a in answers),
    ]
    if again:
        lines += ["", "late or wrong: to be run again, and counted above only once that is done:"]
        lines += [a.line() for a in again]
    data = {"cells": cells_in_all, "right": right, "late": late, "repeated": repeated}
    data |= {"answers": [a.as_json() for a in answers], "run_again": [a.as_json() for a in again]}
    results.write("incidents", COMMAND, lines, data)
