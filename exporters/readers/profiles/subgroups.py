"""Tells communicators of some ranks from one of all, where a profile names no groups.

All ranks of a symmetric collective leave it together; those of two halves do so only by chance. So
the ends of its rows say who was in it, up to an offset between clocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from exporters.readers.profiles import names
from exporters.readers.profiles.joined import Joined

# Ends of one collective are this close, or much closer than its starts.
_SLACK_NS: Final = 20_000
_OF_START_SPREAD: Final = 0.3
# So many rows may be odd (a rank taken off its GPU as it left) before groups are doubted.
_ODD_SHARE: Final = 0.05

_IS_SYMMETRIC: Final = np.array([op in names.SYMMETRIC for op in names.OPS])

_PROBLEM: Final = "its ranks do not leave together, and the profile does not say who belongs"

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def by_ends(whole: Joined, shares_clock: bool) -> list[Joined]:
    """The group as it is where the ends of its symmetric collectives agree; else those that all
    ranks share, and the others by the subgroups that their ends form."""
    symmetric = _IS_SYMMETRIC[whole.op]
    odd = symmetric & ~_fits(whole, 0.0 if shares_clock else _offset(whole, symmetric))
    if odd.sum() <= _ODD_SHARE * max(int(symmetric.sum()), 1):
        return [whole]
    if not shares_clock:
        empty = _rows(whole, np.zeros(len(whole), dtype=bool))
        return [replace(empty, unjoined=len(whole), problem=_PROBLEM)]
    components = _components(_rows(whole, odd))
    # Now that it is known how closely a group's ends agree, the rows that looked like all ranks'
    # because their starts were far apart are told from the subgroups'.
    close = _closeness(_rows(whole, odd), components)
    odd = symmetric & (_end_spread(whole) > close)
    apart = _rows(whole, odd)
    out = [_rows(whole, ~odd)] if (~odd).any() else []
    for members in components:
        part = _members(apart, members)
        if len(members) < 2 or not len(part) or _fits(part).mean() < 1 - _ODD_SHARE:
            empty = _rows(part, np.zeros(len(part), dtype=bool))
            out.append(replace(empty, unjoined=len(part), problem=_PROBLEM))
        else:
            out.append(part)
    return out


def _fits(group: Joined, offset: Floats | float = 0.0) -> Mask:
    """By row, whether all ranks leave together. Shape (n,)."""
    start = group.start_ns - offset
    starts = start.max(axis=1) - start.min(axis=1)
    limit = np.maximum(_SLACK_NS, _OF_START_SPREAD * starts)
    fits: Mask = _end_spread(group, offset) <= limit
    return fits


def _offset(group: Joined, symmetric: Mask) -> Floats:
    """Of each rank's clock to the first's, ns."""
    chosen = group.end_ns[symmetric] if symmetric.any() else group.end_ns
    offset: Floats = np.median(chosen - chosen[:, :1], axis=0)
    return offset


def _end_spread(group: Joined, offset: Floats | float = 0.0) -> Floats:
    """By row, how far apart the ranks leave, ns. Shape (n,)."""
    end = group.end_ns - offset
    spread: Floats = end.max(axis=1) - end.min(axis=1)
    return spread


def _closeness(group: Joined, components: list[list[int]]) -> float:
    """How far apart the ends within a component may be, ns."""
    parts = [_members(group, m) for m in components if len(m) > 1]
    typical = [float(np.percentile(_end_spread(part), 90)) for part in parts]
    return 2 * max(typical, default=0.0) + 1000


def _components(group: Joined) -> list[list[int]]:
    """Positions of the ranks that leave together, pair by pair, on one clock."""
    size = len(group.ranks)
    left = set(range(size))
    out = []
    while left:
        first = min(left)
        members = [i for i in sorted(left) if i == first or _together(group, first, i)]
        left -= set(members)
        out.append(members)
    return out


def _together(group: Joined, one: int, two: int) -> bool:
    ends = float(np.median(np.abs(group.end_ns[:, one] - group.end_ns[:, two])))
    starts = float(np.median(np.abs(group.start_ns[:, one] - group.start_ns[:, two])))
    return ends <= max(_SLACK_NS / 4, _OF_START_SPREAD * starts)


def _rows(group: Joined, chosen: Mask) -> Joined:
    return replace(
        group, op=group.op[chosen], start_ns=group.start_ns[chosen], end_ns=group.end_ns[chosen]
    )


def _members(group: Joined, members: list[int]) -> Joined:
    return replace(
        group,
        ranks=tuple(group.ranks[i] for i in members),
        size=len(members),
        start_ns=group.start_ns[:, members],
        end_ns=group.end_ns[:, members],
        unjoined=0,
    )
