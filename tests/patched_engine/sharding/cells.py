"""Which pods the tests of real engines run on: few by default, all under make soak."""

from __future__ import annotations

from typing import NamedTuple

import pytest


class Cell(NamedTuple):
    """W ranks of one LMCache, loading synchronously or not."""

    world_size: int
    is_async: bool
    version: str

    def __str__(self) -> str:
        return f"W{self.world_size}-{'async' if self.is_async else 'sync'}-{self.version}"


DEFAULT = (Cell(3, False, "0.5.5"), Cell(2, True, "0.5.5"))
ALL = tuple(
    Cell(world_size, is_async, version)
    for version in ("0.5.5", "0.5.6")
    for world_size in (2, 3, 4)
    for is_async in (False, True)
)
PARAMETERS = [
    pytest.param(cell, id=str(cell), marks=() if cell in DEFAULT else (pytest.mark.soak,))
    for cell in ALL
]
