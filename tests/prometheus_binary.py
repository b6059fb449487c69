"""Prometheus and Alertmanager for tests: from PATH, else unpacked once from Debian's packages."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROMETHEUS = ("prometheus", "promtool")
# Debian calls the server by its package's name.
ALERTMANAGER = ("prometheus-alertmanager", "amtool")


def programs() -> tuple[str, str]:
    """Paths of prometheus and promtool; the test is skipped, with the reason, without them."""
    return _found("prometheus", PROMETHEUS)


def alertmanager_programs() -> tuple[str, str]:
    """Paths of Alertmanager and amtool, or the test is skipped."""
    return _found("prometheus-alertmanager", ALERTMANAGER)


def _found(package: str, names: tuple[str, str]) -> tuple[str, str]:
    found = tuple(shutil.which(name) for name in names)
    if not all(found):
        folder = _unpacked(package, names[1])
        found = tuple(shutil.which(name, path=str(folder / "usr/bin")) for name in names)
    server, tool = found
    if server is None or tool is None:
        pytest.skip(f"no {names[0]} in PATH, and Debian's package {package} could not be had")
    return server, tool


@functools.cache
def _unpacked(package: str, tool: str) -> Path:
    """The cache folder with the package's files; without root, and once a machine."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "stallscope" / package
    if (folder / "usr/bin" / tool).exists():
        return folder
    partial = folder.with_name(f"{package}.{os.getpid()}")  # renamed whole: tests run side by side
    try:
        partial.mkdir(parents=True, mode=0o700)
        download = ["apt-get", "download", "-qq", package]
        subprocess.run(download, cwd=partial, stderr=subprocess.DEVNULL, timeout=120, check=True)
        archive = next(partial.glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(archive), str(partial)], timeout=60, check=True)
        archive.unlink()
        partial.rename(folder)
    except (OSError, subprocess.SubprocessError, StopIteration):
        pass
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
