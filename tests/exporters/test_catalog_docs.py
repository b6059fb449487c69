"""docs/metrics.md is what the catalog says today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

from exporters.catalog import METRICS, PROFILE_METRICS, Emitter
from exporters.catalog_docs import SECTIONS, markdown

ROOT = Path(__file__).parents[2]


def test_the_committed_page_is_what_the_command_prints():
    printed = subprocess.run(
        [sys.executable, "-m", "exporters.catalog_docs"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    committed = (ROOT / "docs" / "metrics.md").read_text()
    assert printed == committed, "run: make docs-metrics"


def test_every_metric_has_one_row_and_every_emitter_a_section():
    rows = [line for line in markdown().splitlines() if line.startswith("| `stallscope_")]
    named = [row.split("`")[1] for row in rows]
    assert sorted(named) == sorted(m.name for m in (*METRICS, *PROFILE_METRICS))
    assert set(SECTIONS) == set(get_args(Emitter))
    assert {row.replace("\\|", "").count("|") for row in rows} == {7}
