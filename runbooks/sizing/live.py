"""The inputs of a sizing that a running engine's pages can give."""

from __future__ import annotations

from pathlib import Path

from runbooks.sizing.inputs import Value


def read(pages: Path) -> tuple[dict[str, Value], tuple[str, ...]]:
    """By flag; and a line for each thing that the pages cannot tell (yet)."""
    return {}, (f"{pages}: nothing",)
