"""A bundle of each incident gives the same first cause as a look at the living engine."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from lab.incidents import INCIDENTS
from tests.lab.incident_cells import SHARD_FAULTS, Cell
from tests.lab.runs import end, start
from tests.runbooks.command_line import stallscope

pytest.importorskip("torch")
pytest.importorskip("lmcache")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

NAMES = sorted(INCIDENTS)
SECONDS = 75.0  # a late rank is told after three windows


def place(finding: dict) -> tuple:
    return tuple(finding[name] for name in ("id", "rank", "shard", "cause"))


@pytest.mark.parametrize("name", NAMES)
def test_the_first_cause_is_the_same(name: str, tmp_path: Path) -> None:
    engine = "sharded" if name in SHARD_FAULTS else "stock"
    lab = start(tmp_path, *Cell(name, 2, False, 0, "0.5.5", engine).arguments)
    try:
        watch = lab.wait_for(r"stallscope diagnose (--from \S+(?: --valkey \S+)+)").group(1).split()
        deadline = time.monotonic() + INCIDENTS[name].earliest_seconds + SECONDS
        live: list[dict] = []
        while not live and time.monotonic() < deadline:
            live = json.loads(stallscope("diagnose", "--json", *watch).out)["findings"]
        assert live, f"{name} was not named"
        out = tmp_path / "b.tar.gz"
        assert stallscope("bundle", *watch, "--out", out).code in (0, 3)
        # What the fault brings about meanwhile may stand above: the same look, again.
        again = json.loads(stallscope("diagnose", "--json", *watch).out)["findings"]
    finally:
        end(lab)
    told = json.loads(stallscope("diagnose", "--json", "--from", out).out)["findings"]
    assert told, "the bundle names nothing"
    assert place(told[0]) in (place(live[0]), place(again[0]))
    assert told[0]["id"] == INCIDENTS[name].finding
