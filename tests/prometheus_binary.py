"""Prometheus and promtool for tests: from PATH, else unpacked once from Debian's package."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGE = "prometheus"
PROGRAMS = ("prometheus", "promtool")


def programs() -> tuple[str, str]:
    """Paths of prometheus and promtool; the test is skipped, with the reason, without them."""
    found = tuple(shutil.which(name) for name in PROGRAMS)
    if not all(found):
        folder = _unpacked()
        found = tuple(shutil.which(name, path=str(folder / "usr/bin")) for name in PROGRAMS)
    server, tool = found
    if server is None or tool is None:
        pytest.skip("no prometheus in PATH, and Debian's package could not be had")
    return server, tool


@functools.cache
def _unpacked() -> Path:
    """The cache folder with the package's files; without root, and once a machine."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "stallscope" / PACKAGE
    if (folder / "usr/bin/promtool").exists():
        return folder
    partial = folder.with_name(f"{PACKAGE}.{os.getpid()}")  # renamed whole: tests run side by side
    try:
        partial.mkdir(parents=True, mode=0o700)
        download = ["apt-get", "download", "-qq", PACKAGE]
        subprocess.run(download, cwd=partial, stderr=subprocess.DEVNULL, timeout=120, check=True)
        package = next(partial.glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), str(partial)], timeout=60, check=True)
        package.unlink()
        partial.rename(folder)
    except (OSError, subprocess.SubprocessError, StopIteration):
        pass
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
