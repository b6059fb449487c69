"""Metric names in the source of an installed vLLM, read as text: importing it takes a minute."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from dashboards.foreign import VLLM_VERSION
from tests.project.layout import ROOT

_NAME = re.compile(r"[\"'](vllm:[a-z_]+)[\"']")


def text_of(name: str) -> str:
    """A file of vLLM. The test is skipped where that version is not installed."""
    return (_installed() / name).read_text()


def _installed() -> Path:
    folder = _folder()
    if folder is None:
        pytest.skip("vLLM is not installed: make setup-vllm")
    if _version(folder) != VLLM_VERSION:
        pytest.skip(f"vLLM {_version(folder)} is installed, and {VLLM_VERSION} was asked for")
    return folder


def names() -> set[str]:
    """Every metric that it names."""
    texts = [path.read_text() for path in (_installed() / "v1/metrics").glob("*.py")]
    return {name for text in texts for name in _NAME.findall(text)}


def _folder() -> Path | None:
    if spec := importlib.util.find_spec("vllm"):
        return Path(str(spec.origin)).parent
    return next(ROOT.glob(".venv-vllm/lib/python3*/site-packages/vllm"), None)


def _version(folder: Path) -> str:
    found = next(folder.parent.glob("vllm*.dist-info"), Path("vllm-none.dist-info"))
    return found.name.partition("-")[2].partition(".dist-info")[0].partition("+")[0]
