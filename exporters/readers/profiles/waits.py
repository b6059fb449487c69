"""The one definition of collective wait (design, Definitions), by duration and by start skew.

By duration, wait_r = d_r - min d: symmetric ops, no clock needed. By start skew, wait_r = max
arrive - arrive_r: any op, where the ranks' clocks are one. An op has the first where it is
symmetric, else the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from exporters.readers.profiles import names
from exporters.readers.profiles.joined import Joined

# Clocks count as one where nobody ends a symmetric collective before its last rank has come (but
# for this much, which is how far apart a device's and its host's clock are read), and ends fall
# together.
CLOCK_SLACK_NS: Final = 100_000
_MAX_EARLY_SHARE: Final = 0.05
# How far apart ends may be, as a share of how far apart the starts are.
_MAX_END_SHARE: Final = 0.5

_IS_SYMMETRIC: Final = np.array([op in names.SYMMETRIC for op in names.OPS])

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Clock:
    """Whether one clock can be assumed for a group's ranks, and why not."""

    shared: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Waits:
    """A joined group's waits. `wait_seconds` (n, W), NaN where an op has no basis; `last` (n,) the
    position of the last to arrive (-1 where unknown); by rank in seconds (W,): `by_duration` over
    the symmetric ops (and over all ops in `by_duration_all`, for comparison), `by_skew` over all
    ops, None without a shared clock."""

    group: Joined
    clock: Clock
    wait_seconds: Seconds
    last: npt.NDArray[np.int64]
    by_duration: Seconds
    by_skew: Seconds | None
    skew_matrix: Seconds | None

    def total(self) -> Seconds:
        """Wait of each rank by the definition, seconds, shape (W,)."""
        total: Seconds = np.nansum(self.wait_seconds, axis=0)
        return total

    def charged(self) -> Seconds:
        """The others' wait, charged to the last to arrive: rank-seconds, shape (W,)."""
        return charge(self.wait_seconds, self.last, len(self.group.ranks))

    def last_count(self) -> npt.NDArray[np.int64]:
        """How often each rank came last, shape (W,)."""
        return np.bincount(self.last[self.last >= 0], minlength=len(self.group.ranks))

    @property
    def without_basis(self) -> int:
        """Collectives that neither method can tell of."""
        return int((self.last < 0).sum())


def charge(wait: Seconds, last: npt.NDArray[np.int64], size: int) -> Seconds:
    """Sum of each row's wait onto its last rank, shape (size,)."""
    known = last >= 0
    per_row: Seconds = np.nansum(wait[known], axis=1)
    out: Seconds = np.bincount(last[known], weights=per_row, minlength=size).astype(np.float64)
    return out


def waits_of(group: Joined, shares_clock: bool) -> Waits:
    """The waits of a joined group; `shares_clock` as the recording has it."""
    start, end = group.start_ns, group.end_ns
    duration = end - start
    by_duration: Seconds = (duration - duration.min(axis=1, keepdims=True)) / 1e9
    by_skew: Seconds = (start.max(axis=1, keepdims=True) - start) / 1e9
    symmetric = _IS_SYMMETRIC[group.op]
    clock = clock_of(group, symmetric) if shares_clock else Clock(False, "their clocks are not one")
    by_other = by_skew if clock.shared else np.full_like(by_skew, np.nan)
    wait: Seconds = np.where(symmetric[:, None], by_duration, by_other)
    known = ~np.isnan(wait).any(axis=1)
    last = np.full(len(wait), -1, dtype=np.int64)
    last[known] = wait[known].argmin(axis=1)
    return Waits(
        group,
        clock,
        wait,
        last,
        by_duration.sum(axis=0),
        by_skew.sum(axis=0) if clock.shared else None,
        by_skew if clock.shared else None,
    )


def clock_of(group: Joined, symmetric: npt.NDArray[np.bool_]) -> Clock:
    """Whether the ends of a group's collectives fit one clock for all its ranks."""
    if not len(group):
        return Clock(False, "there is no collective to tell by")
    start, end = group.start_ns, group.end_ns
    # Of a rooted op the root may leave early; all that holds for each op is that it overlaps.
    earliest = end.min(axis=1) if symmetric.any() else end.max(axis=1)
    chosen = symmetric if symmetric.any() else np.ones(len(group), dtype=bool)
    early = (start.max(axis=1) - earliest)[chosen]
    share = float((early > CLOCK_SLACK_NS).mean())
    if share > _MAX_EARLY_SHARE:
        return Clock(
            False,
            f"in {share:.0%} of the collectives a rank leaves before the last has come, so the "
            f"ranks' clocks differ",
        )
    offset = np.median(end[chosen] - end[chosen][:, :1], axis=0)
    apart = float(offset.max() - offset.min())
    skew = float(np.median((start.max(axis=1) - start.min(axis=1))[chosen]))
    if apart > max(CLOCK_SLACK_NS, _MAX_END_SHARE * skew):
        return Clock(False, f"the ranks' ends are {apart / 1e6:.2f} ms apart")
    return Clock(True)
