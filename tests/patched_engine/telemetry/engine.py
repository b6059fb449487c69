"""Runs the traced engine as a process and gathers what it says of itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.patched_engine.telemetry.traced_engine import LOST_COMPLETION
from tests.servers import valkey_server

ROOT = Path(__file__).parents[3]
PROGRAM = "tests.patched_engine.telemetry.traced_engine"
PREFIXES = ("OTEL_", "STALLSCOPE_", "NVTX_")
STANDSTILL_SECONDS = 60


@dataclass(frozen=True)
class Run:
    """What the process did, in order, and what it found in itself at the end."""

    did: list[dict[str, Any]]
    end: dict[str, Any]
    shard_port: int


def clean_environment() -> dict[str, str]:
    """This process's environment without anything that turns telemetry on."""
    return {k: v for k, v in os.environ.items() if not k.startswith(PREFIXES)}


@contextlib.contextmanager
def traced_engine(
    folder: Path, mode: str, version: str = "0.5.5", **environment: str
) -> Iterator[Run]:
    """A finished run, its process still there: what it sends late may be waited for.

    Stock LMCache's client loses a completion now and then, and stands still: that run is done
    again.
    """
    pytest.importorskip("lmcache")
    path = str(ROOT)
    if version == "0.5.6":
        second = Path(sys.prefix) / "lmcache-0.5.6"
        if not second.is_dir():
            pytest.skip("LMCache 0.5.6 is not beside the environment (make setup)")
        path = f"{second}:{path}"
    log = folder / "engine.log"
    for _ in range(3):
        with valkey_server() as port, log.open("w") as log_file:
            process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, str(port), mode],
                cwd=folder,
                env={
                    **clean_environment(),
                    "PYTHONPATH": path,
                    "PYTHONHASHSEED": "0",
                    "LMCACHE_LOG_LEVEL": "CRITICAL",
                    "LMCACHE_TRACK_USAGE": "false",
                    "PROMETHEUS_MULTIPROC_DIR": str(folder),
                    **environment,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                text=True,
            )
            watchdog = threading.Timer(STANDSTILL_SECONDS, process.kill)
            watchdog.start()
            try:
                assert process.stdout is not None
                lines = _until_end(process.stdout)
                watchdog.cancel()
                if lines:
                    yield Run(lines[:-1], lines[-1], port)
                    return
                status = process.wait()
                assert status in (-signal.SIGKILL, LOST_COMPLETION), f"{status}: {log.read_text()}"
            finally:
                watchdog.cancel()
                process.kill()
                process.wait()
    pytest.fail("three engines in a row stood still")


def _until_end(output: Iterable[str]) -> list[dict[str, Any]]:
    """What the program printed up to its last word, or nothing if that never came."""
    lines = []
    for line in output:
        if line.startswith("{"):
            lines.append(json.loads(line))
            if "installed" in lines[-1]:
                return lines
    return []
