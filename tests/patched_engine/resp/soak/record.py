"""What a long run leaves in its result file: figures, command, versions, hardware."""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any


def record(path: Path, name: str, figures: dict[str, Any], **versions: str) -> None:
    """Writes `figures` under `name`, beside what other runs left in the same file."""
    known = json.loads(path.read_text()) if path.exists() else {}
    known[name] = figures | {
        "command": "make soak",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": f"{_processor()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), **versions},
    }
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.machine()
