"""Runs the lab as a user does, in a process of its own, and looks for what it may leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TRIES = 4


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "lab", *arguments]


def environment(temporary: Path) -> dict[str, str]:
    """A temporary folder of its own: whatever a run leaves, it leaves there."""
    return os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(REPOSITORY)}


def run_lab(temporary: Path, *arguments: str) -> dict[str, Any]:
    """One run's JSON. A run in which the stock client lost a completion by itself is repeated."""
    faults: dict[str, int] = {}
    for _ in range(TRIES):
        answer = subprocess.run(
            command("run", "--json", *arguments),
            env=environment(temporary),
            cwd=temporary,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert answer.returncode in (0, 2), answer.stderr[-2000:]
        report: dict[str, Any] = json.loads(answer.stdout)
        faults = report["stock_faults"]
        if not any(faults.values()):
            return report
        print(f"the stock client lost a completion by itself ({faults}); running it again")
    pytest.fail(f"the stock client lost a completion in {TRIES} runs running: {faults}")


def processes_of(temporary: Path) -> list[str]:
    """The command lines of all living processes that have to do with this temporary folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if str(temporary).encode() in words and state not in "ZX":
            found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def assert_nothing_left(temporary: Path, within_seconds: float = 5.0) -> None:
    """No process, so no port either, and no file."""
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        if not processes_of(temporary) and not list(temporary.iterdir()):
            return
        time.sleep(0.05)
    assert not processes_of(temporary)
    assert not list(temporary.iterdir())
