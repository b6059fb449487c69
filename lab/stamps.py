"""The lab's own record of who entered each collective when, kept apart from the page.

The page must agree with it: it is taken by other code, at another place, and read by nothing that
a detector sees. Each entry goes to a file at once, so that a rank that is stuck or killed leaves
what it had.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ENTRY: Final = struct.Struct("<qq")


class Stamps:
    """One rank's entries of the all-gathers, in order: CLOCK_MONOTONIC ns at arrival and return."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = os.open(_path(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._arrived_ns = 0

    def arrive(self) -> None:
        self._arrived_ns = time.monotonic_ns()

    def leave(self) -> None:
        os.write(self._file, _ENTRY.pack(self._arrived_ns, time.monotonic_ns()))


def read_arrived_ns(folder: Path, rank: int) -> list[int]:
    """When this rank entered each collective that it also left."""
    path = _path(folder, rank)
    data = path.read_bytes() if path.exists() else b""
    return [arrived for arrived, _ in _ENTRY.iter_unpack(data[: len(data) // 16 * 16])]


def _path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.stamps"


@dataclass(frozen=True, slots=True)
class StampedWait:
    """From all ranks' stamps, indexed by rank: seconds waited, seconds charged, times last."""

    collectives: int
    wait_seconds: tuple[float, ...]
    charged_seconds: tuple[float, ...]
    last_count: tuple[int, ...]


def join(arrived_ns: Sequence[Sequence[int]]) -> StampedWait:
    """Who waited and who was waited for. One host, one clock: wait is last arrival - own.

    The last to arrive is charged with all that the others waited.
    """
    ranks = len(arrived_ns)
    wait_ns, charged_ns, last_count = [0] * ranks, [0] * ranks, [0] * ranks
    count = min((len(row) for row in arrived_ns), default=0)
    for entry in zip(*(row[:count] for row in arrived_ns), strict=True):
        latest = max(entry)
        last = entry.index(latest)
        last_count[last] += 1
        for rank, at in enumerate(entry):
            wait_ns[rank] += latest - at
            charged_ns[last] += latest - at
    return StampedWait(
        count,
        tuple(ns / 1e9 for ns in wait_ns),
        tuple(ns / 1e9 for ns in charged_ns),
        tuple(last_count),
    )
