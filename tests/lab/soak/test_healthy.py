"""A quarter of an hour of a healthy engine: no finding, and nothing that grows."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.lab.soak import results
from tests.lab.soak.healthy import RATES, page_events, soak
from tests.lab.soak.slopes import slope

pytest.importorskip("torch")
pytest.importorskip("lmcache")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
COMMAND = "python -m pytest -q -s -m soak tests/lab/soak/test_healthy.py"
SECONDS = 900.0
# Histories fill and allocators settle before anything can be said to grow: ten minutes are judged.
SETTLED_SECONDS = 300.0
MOST_PER_HOUR = 0.01
LEAST_EVENTS = 10**6
JUDGED = ("exporter", "rank 0", "rank 1")


def test_a_quarter_of_an_hour_without_a_finding() -> None:
    with tempfile.TemporaryDirectory() as folder:
        watched = soak(Path(folder), SECONDS)
    result = watched.result
    events = page_events(result)
    lines = [
        f"W=2, asynchronous loading, {SECONDS:.0f} s, {len(RATES) - 1} changes of rate, one long "
        f"prompt; {'; '.join(watched.done)}",
        f"{result['requests']['count']} requests, {result['requests']['unfinished']} unfinished, "
        f"{result['steps']} steps, {events:,} page events; loaded bytes right: "
        f"{result['bytes_equal']}",
        f"findings in the lab's ticks: {result['named_after_seconds'] or 'none'}; in "
        f"{watched.scrapes} scrapes of the exporter: {dict(watched.findings) or 'none'}",
        "",
        "rule                 evaluable in the lab  in the exporter's scrapes",
    ]
    for name, rule in result["rules"].items():
        in_lab = f"{rule['evaluable_ticks']} of {rule['ticks']}"
        lines.append(f"{name:<20} {in_lab:>21}  {watched.evaluable[name]:>6} of {watched.scrapes}")
    lines += ["", f"growth an hour (95% upper bound) after the first {SETTLED_SECONDS:.0f} s"]
    grown = []
    for name, rows in watched.samples.items():
        settled = [row for row in rows if row[0] >= SETTLED_SECONDS]
        for column, what in enumerate(("RSS", "fds", "threads"), start=1):
            found = slope([row[0] for row in settled], [float(row[column]) for row in settled])
            lines.append(
                f"{name:<10} {what:<8} mean {found.mean:>14,.0f}  {found.per_hour:>8.2%}  "
                f"({found.upper_per_hour:.2%})"
            )
            if name in JUDGED and found.upper_per_hour >= MOST_PER_HOUR:
                grown.append(lines[-1])
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    lines += ["", f"at its end {load:.1f} processes wanted each CPU"]
    print("\n".join(lines), flush=True)
    data = {
        "page_events": events,
        "findings": dict(watched.findings),
        "named": result["named_after_seconds"],
        "rules": result["rules"],
        "evaluable_scrapes": dict(watched.evaluable),
        "scrapes": watched.scrapes,
        "samples": watched.samples,
    }
    results.write("healthy", COMMAND, lines, data)
    assert result["named_after_seconds"] == []
    assert not watched.findings
    assert events >= LEAST_EVENTS
    assert all(rule["evaluable_ticks"] > 0 for rule in result["rules"].values())
    assert grown == []
