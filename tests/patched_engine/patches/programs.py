"""Runs the test programs of this folder on either LMCache, with patches on or off."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ALL = "all"
NONE = "none"


def lmcache_path(version: str) -> str:
    """PYTHONPATH for this LMCache; skips where it is not installed."""
    if importlib.util.find_spec("lmcache") is None:
        pytest.skip("lmcache is not installed")
    if version == "0.5.5":
        return str(ROOT)
    second = Path(sys.prefix) / f"lmcache-{version}"
    if not second.is_dir():
        pytest.skip(f"LMCache {version} is not beside the environment (make setup)")
    return f"{second}:{ROOT}"


def environment(folder: Path, version: str, patches: str, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": lmcache_path(version),
        "PYTHONHASHSEED": "0",
        "LMCACHE_LOG_LEVEL": "ERROR",
        "LMCACHE_TRACK_USAGE": "false",
        "PROMETHEUS_MULTIPROC_DIR": str(folder),
        "STALLSCOPE_PATCHES": patches,
        **more,
    }


def run(
    module: str,
    *arguments: object,
    folder: Path,
    version: str = "0.5.5",
    patches: str = ALL,
    seconds: float = 200.0,
    **more: str,
) -> dict[str, Any] | None:
    """What the program printed; None where it stood still or had to be ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.patched_engine.patches.{module}", *map(str, arguments)],
        cwd=folder,
        env=environment(folder, version, patches, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    if not out.strip():
        assert process.returncode == 75, errors  # its own watchdog, and nothing else
        return None
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found
