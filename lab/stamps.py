"""The lab's own record of who entered each collective when, kept apart from the page.

The page must agree with it: it is taken by other code, at another place, and read by nothing that
a detector sees.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass


class Stamps:
    """One rank's entries of the all-gathers, in order: CLOCK_MONOTONIC ns at arrival and return."""

    def __init__(self) -> None:
        self.arrived_ns = array("q")
        self.left_ns = array("q")

    def arrive(self) -> None:
        self.arrived_ns.append(time.monotonic_ns())

    def leave(self) -> None:
        self.left_ns.append(time.monotonic_ns())


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
