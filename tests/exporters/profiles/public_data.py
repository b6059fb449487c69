"""Where the public profiles lie, which are not part of the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.runbooks.command_line import ROOT


def public(name: str) -> Path:
    """The file, or a skip that says what to set."""
    folder = Path(os.environ.get("STALLSCOPE_DATA", ROOT.parent / "shared" / "data"))
    path = folder / name
    if not path.exists():
        pytest.skip(f"no {name} in {folder} (set STALLSCOPE_DATA)")
    return path
