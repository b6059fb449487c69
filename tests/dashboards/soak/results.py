"""Gathers what the runs showed into one committed file: a line an incident."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.lab.soak import results

CHOSEN_VARIABLE = "STALLSCOPE_INCIDENTS"
_LINES: dict[str, str] = {}
_DATA: dict[str, Any] = {}


def note(command: str, scale: float, seen: Any) -> None:
    """Add one run, and write the file anew."""
    alerts = ", ".join(sorted(f"{alert} ({severity})" for alert, severity in seen.fired)) or "none"
    left = "; ".join(f"{title} {value:.3g}" for title, value in sorted(seen.left.items()))
    after = f" after {seen.fired_after_seconds:.0f} s" if seen.fired_after_seconds else ""
    _LINES[seen.name] = f"{seen.name}: fired{after}: {alerts}\n    left: {left or 'none'}"
    _DATA[seen.name] = {
        "fired": sorted(seen.fired),
        "fired_after_seconds": seen.fired_after_seconds,
        "left": seen.left,
        "missed": seen.missed,
    }
    print(_LINES[seen.name], json.dumps(seen.missed), flush=True)
    head = [
        f"Rules at a time scale of {scale:g} on a real Prometheus: the alerts that fired, and the",
        "worst values outside of their range on panels that an incident should move (healthy: all)",
    ]
    if not os.environ.get(CHOSEN_VARIABLE):  # a run of some incidents is no result
        results.write("monitoring", command, [*head, "", *_LINES.values()], _DATA)
