"""The sharded engine in the lab: right bytes on every rank, and nothing of what rank 0 cost."""

from __future__ import annotations

import pytest

from tests.lab.sharded_runs import Cell, matrix, run_cell

pytest.importorskip("torch")
pytest.importorskip("lmcache")

SECONDS = 12
# One shard and one a rank, both loadings, both versions; the stock incident's settings with both.
ONCE = (
    Cell(2, False, 2, "0.5.5", "rank0-store"),
    Cell(2, True, 2, "0.5.6", "rank0-store"),
)


@pytest.mark.parametrize("cell", ONCE, ids=lambda cell: "async" if cell.is_async else "sync")
def test_all_ranks_load_the_same_right_bytes_and_nothing_is_found(cell: Cell) -> None:
    outcome = run_cell(cell, SECONDS, 2)
    assert outcome.wrong == [], outcome.line()


def test_the_matrix_is_whole() -> None:
    cells = list(matrix())
    assert len(set(cells)) == len(cells) == 2 * 3 * 2 * 2 + 3 * 2
