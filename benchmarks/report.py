"""What every bench prints: one table beside its rivals, then a verdict for each bar.

A bar is `short` when its figure misses its limit by more than the A/A spread (the same thing
measured against itself in the same run), `below-noise` when the miss is smaller than that spread:
reported, not judged.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

RESULTS = Path(__file__).parent / "results"
QUICK = os.environ.get("QUICK", "") not in ("", "0")

Verdict = Literal["ok", "short", "below-noise"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure against its limit; `noise` is the A/A spread in the figure's own unit."""

    name: str
    figure: float
    limit: float
    unit: str = ""
    at_most: bool = True
    noise: float = 0.0

    @property
    def verdict(self) -> Verdict:
        miss = self.figure - self.limit if self.at_most else self.limit - self.figure
        if miss <= 0:
            return "ok"
        return "below-noise" if miss <= self.noise else "short"


@dataclass(slots=True)
class Report:
    """One bench's table and bars."""

    name: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def finish(self) -> int:
        """Print, write `benchmarks/results/NAME.{md,json}`; 0 unless a bar is short.

        A QUICK run prints only: its figures are for a look, not for the record.
        """
        text = self._text()
        print(text)
        if not QUICK:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{self.name}.md").write_text(f"# bench {self.name}\n\n```\n{text}\n```\n")
            (RESULTS / f"{self.name}.json").write_text(json.dumps(self._data(), indent=1) + "\n")
        return int(any(bar.verdict == "short" for bar in self.bars))

    def _data(self) -> dict[str, object]:
        return {
            "name": self.name,
            **_conditions(self.versions),
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "bars": [{**asdict(bar), "verdict": bar.verdict} for bar in self.bars],
            "notes": self.notes,
        }

    def _text(self) -> str:
        cells = [list(self.columns), *[list(row) for row in self.rows]]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        lines += ["", *(f"note: {note}" for note in self.notes)]
        for bar in self.bars:
            relation = "<=" if bar.at_most else ">="
            spread = f", A/A spread {bar.noise:.3g}" if bar.noise else ""
            lines.append(
                f"bar: {bar.name}: {bar.figure:.3g} {relation} {bar.limit:.3g} {bar.unit}".rstrip()
                + f"{spread}: {bar.verdict}"
            )
        lines += [f"{key}: {value}" for key, value in _conditions(self.versions).items()]
        return "\n".join(lines)


def take_no_arguments(doc: str | None) -> None:
    """`--help` says what a bench measures; anything else on its line is refused (exit 2)."""
    argparse.ArgumentParser(
        description=doc,
        epilog="QUICK=1 in the environment: a look in under a minute, not for the record",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()


def _conditions(versions: dict[str, str]) -> dict[str, object]:
    """What the figures stand on: command, date, hardware, versions."""
    return {
        "command": "make "
        + "bench-"
        + Path(sys.argv[0]).stem.replace("_", "-")
        + (" " + shlex.join(sys.argv[1:]) if len(sys.argv) > 1 else ""),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": f"{_processor()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), **versions},
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()
