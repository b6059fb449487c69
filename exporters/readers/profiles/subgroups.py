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
# Clocks of two hosts run apart by this much over a record.
_DRIFT_NS: Final = 100_000
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
    fits = _fits(whole) if shares_clock else _end_spread(whole, symmetric) <= _DRIFT_NS
    odd = symmetric & ~fits
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
    # Whose a rooted one is cannot be told by its ends, which need not agree.
    shared = symmetric & ~odd
    rooted = int((~symmetric).sum())
    out = [replace(_rows(whole, shared), unjoined=whole.unjoined + rooted)] if shared.any() else []
    for members in components:
        part = _members(apart, members)
        if len(members) < 2 or not len(part) or _fits(part).mean() < 1 - _ODD_SHARE:
            empty = _rows(part, np.zeros(len(part), dtype=bool))
            out.append(replace(empty, unjoined=len(part), problem=_PROBLEM))
        else:
            out.append(part)
    return out


def _fits(group: Joined) -> Mask:
    """By row, whether all ranks leave together, on one clock. Shape (n,)."""
    starts = group.start_ns.max(axis=1) - group.start_ns.min(axis=1)
    limit = np.maximum(_SLACK_NS, _OF_START_SPREAD * starts)
    fits: Mask = _end_spread(group) <= limit
    return fits


def _end_spread(group: Joined, symmetric: Mask | None = None) -> Floats:
    """By row, how far apart the ranks leave, ns. Shape (n,). With `symmetric`, but for what is the
    same in all those rows: the offset between clocks."""
    end = (group.end_ns - (group.end_ns.min() if len(group) else 0)).astype(np.float64)
    if symmetric is not None and symmetric.any():
        end = end - np.median(end[symmetric] - end[symmetric][:, :1], axis=0)
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
