"""What `stallscope doctor` asks of this room: which patches an engine started here would have.

The answer comes from a process of its own, which imports LMCache's modules with the patches on:
the command stays small, and a broken LMCache ends that process and not the command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from patched_engine.doctor_probe import main; main()"
)
_FIRST_WORD_SECONDS: Final = 2.0
_NEXT_WORD_SECONDS: Final = 3.0
# What would make the probe an engine: its page, its spans, its ranges.
_NOT_FOR_THE_PROBE: Final = ("OTEL_", "NVTX_INJECTION64_PATH")

Section = dict[str, Any]


def examine(say: Callable[[str], None], seconds: float) -> list[Section]:
    """Sections of rows, as `stallscope doctor` shows them; within `seconds`. Never raises.

    A row has `name`, `state`, `level` (ok, note, warning or unseen), `why`, and facts of its own.
    """
    with tempfile.TemporaryDirectory(prefix="stallscope-doctor-") as folder:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_FOR_THE_PROBE)}
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)],
                env={**kept, "STALLSCOPE_DIR": folder, "LMCACHE_TRACK_USAGE": "false"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except OSError as error:
            return [_unseen(f"{sys.executable} could not be run: {error.strerror}")]
        try:
            out, errors = _wait(process, say, seconds)
        except subprocess.TimeoutExpired:
            return [
                _unseen(
                    f"LMCache's modules were not imported within {seconds:.0f} s: give --timeout"
                )
            ]
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
    try:
        found: list[Section] = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = (errors.strip().splitlines() or ["it said nothing"])[-1][:200]
        how = f"signal {-process.returncode}" if process.returncode < 0 else "an error"
        return [_unseen(f"importing LMCache's modules ended in {how}: {last}")]
    return found


def _wait(
    process: subprocess.Popen[str], say: Callable[[str], None], seconds: float
) -> tuple[str, str]:
    """Raises TimeoutExpired after `seconds`."""
    begun = time.monotonic()
    pause = _FIRST_WORD_SECONDS
    while True:
        left = begun + seconds - time.monotonic()
        try:
            return process.communicate(timeout=max(0.0, min(pause, left)))
        except subprocess.TimeoutExpired:
            spent = time.monotonic() - begun
            if spent >= seconds:
                raise
            say(f"importing LMCache with the patches on, in a process of its own: {spent:.0f} s")
            pause = _NEXT_WORD_SECONDS


def _unseen(why: str) -> Section:
    row = {"name": "all of them", "state": "unseen", "level": "unseen", "why": why}
    return {"title": "patches", "rows": [row]}
