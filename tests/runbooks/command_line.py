"""Runs the `stallscope` command as a user does: a process of its own, its output and its time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "runbooks.cli.main")


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    code: int
    out: str
    err: str
    seconds: float

    def line(self) -> str:
        """Everything that was said, where it must be one line."""
        lines = [line for line in (self.out + self.err).splitlines() if line.strip()]
        assert len(lines) == 1, lines
        return lines[0]


def environment(**changes: str) -> dict[str, str]:
    """The tests' environment, without what would change the command's answer."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("STALLSCOPE_", "NO_COLOR"))}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def stallscope(*arguments: str | Path, timeout_seconds: float = 30, **changes: str) -> Outcome:
    """Run to the end, with both streams piped."""
    began = time.monotonic()
    run = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        env=environment(**changes),
        check=False,
    )
    assert "Traceback" not in run.stderr, run.stderr
    return Outcome(run.returncode, run.stdout, run.stderr, time.monotonic() - began)
