"""Brings the ranks' rows of one collective together: the same group, op and sequence number.

Where a format has no sequence numbers, the order of a rank's collectives on one stream stands for
them: every rank issues the collectives of one communicator in one order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from exporters.readers.profiles import names
from exporters.readers.profiles import table as t
from exporters.readers.profiles.joined import Joined
from exporters.readers.profiles.load import Recording
from exporters.readers.profiles.subgroups import by_ends

# A rank whose record begins or ends elsewhere has a few more collectives than another.
_MAX_SHIFT: Final = 64


def join(recording: Recording) -> list[Joined]:
    """Every group of the recording, joined or with the reason why not."""
    table = recording.table
    rows = table.take(np.isin(table.kind, t.COLLECTIVE_KINDS) & (table.rank >= 0))
    if not len(rows):
        return []
    # Where a GPU's collectives are there, a host's (its control plane) are not what one waits for.
    if (rows.kind == t.COLLECTIVE).any():
        rows = rows.take(rows.kind == t.COLLECTIVE)
    out = []
    for group in np.unique(rows.group):
        mine = rows.take(rows.group == group)
        about = recording.groups[group] if group >= 0 else t.GroupName("", 0)
        ranks = tuple(int(r) for r in np.unique(mine.rank))
        size = about.size or len(about.ranks)
        if group < 0:
            size = recording.world_size or len(recording.ranks)
        if size > len(ranks):
            out.append(_not_joined(about.name, ranks, size, len(mine), _half(ranks, size)))
        elif len(ranks) < 2:
            out.append(_not_joined(about.name, ranks, size, len(mine), "one rank only"))
        elif (mine.sequence >= 0).all():
            out.append(_by_sequence(about.name, ranks, mine))
        else:
            out += _by_order(about.name, ranks, mine, recording.shares_clock)
    return out


def _half(ranks: tuple[int, ...], size: int) -> str:
    return f"{len(ranks)} of its {size} ranks are here"


def _not_joined(name: str, ranks: tuple[int, ...], size: int, rows: int, problem: str) -> Joined:
    empty = np.empty((0, len(ranks)), dtype=np.int64)
    return Joined(
        name, ranks, max(size, len(ranks)), np.empty(0, np.int8), empty, empty, rows, problem
    )


def _by_sequence(name: str, ranks: tuple[int, ...], rows: t.Table) -> Joined:
    """Rows with one number for each collective; a number that comes twice (a coalesced call, or
    point to point beside it) is told apart by op, and then by order."""
    order = np.lexsort((rows.start_ns, rows.sequence, rows.op, rows.rank))
    rows = rows.take(order)
    same = np.zeros(len(rows), dtype=bool)
    same[1:] = (np.diff(rows.rank) == 0) & (np.diff(rows.op) == 0) & (np.diff(rows.sequence) == 0)
    position = np.arange(len(rows))
    turn = position - np.maximum.accumulate(np.where(same, 0, position))
    key = np.stack([rows.op.astype(np.int64), rows.sequence, turn], axis=1)
    _, inverse = np.unique(key, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    count = np.bincount(inverse)
    whole = np.flatnonzero(count == len(ranks))
    if not len(whole):
        return _not_joined(name, ranks, len(ranks), len(rows), "no collective is on all its ranks")
    row_of = np.zeros((len(count), len(ranks)), dtype=np.int64)
    row_of[inverse, np.searchsorted(ranks, rows.rank)] = np.arange(len(rows))
    index = row_of[whole]
    index = index[np.argsort(rows.start_ns[index].min(axis=1), kind="stable")]
    return Joined(
        name,
        ranks,
        len(ranks),
        rows.op[index[:, 0]],
        rows.start_ns[index],
        rows.end_ns[index],
        len(count) - len(whole),
    )


def _by_order(
    name: str, ranks: tuple[int, ...], rows: t.Table, shares_clock: bool
) -> Iterator[Joined]:
    """One group for each stream, streams of different ranks paired by what runs on them."""
    per_rank = [rows.take(rows.rank == rank) for rank in ranks]
    streams = [_streams(r) for r in per_rank]
    counts = {len(s) for s in streams}
    if len(counts) > 1:
        # Some communicators live on some ranks only, and nothing says on which.
        yield _not_joined(
            name, ranks, len(ranks), len(rows), "its ranks use different numbers of streams"
        )
        return
    for parts in zip(*streams, strict=True):
        whole = _aligned(name, ranks, list(parts), shares_clock)
        yield from by_ends(whole, shares_clock) if len(whole) and len(ranks) > 2 else [whole]


def _streams(rows: t.Table) -> list[t.Table]:
    """The rows by stream, in order of time within each; streams in order of their first op's kind
    and count, which is the same on every rank of the group."""
    found = []
    for stream in np.unique(rows.stream):
        mine = rows.take(rows.stream == stream)
        found.append(mine.take(np.argsort(mine.start_ns, kind="stable")))
    if (rows.kind == t.HOST_COLLECTIVE).all():
        # Worker threads share one queue: their order is that of their starts, whoever took which.
        return [rows.take(np.argsort(rows.start_ns, kind="stable"))]
    return sorted(found, key=lambda part: (tuple(np.bincount(part.op, minlength=16)), len(part)))


def _aligned(name: str, ranks: tuple[int, ...], parts: list[t.Table], shares_clock: bool) -> Joined:
    total = max(len(p) for p in parts)
    shifts = [0] * len(parts)
    if len({len(p) for p in parts}) > 1:
        found = _shifts(parts) if shares_clock else None
        if found is None:
            counts = ", ".join(f"rank {r} has {len(p)}" for r, p in zip(ranks, parts, strict=True))
            return _not_joined(
                name, ranks, len(ranks), sum(map(len, parts)), f"their counts differ: {counts}"
            )
        shifts = found
    begin = max(0, *(-s for s in shifts)) if any(s < 0 for s in shifts) else 0
    count = min(len(p) - s for p, s in zip(parts, shifts, strict=True)) - begin
    chosen = [
        p.take(np.arange(begin + s, begin + s + count)) for p, s in zip(parts, shifts, strict=True)
    ]
    ops = np.stack([c.op for c in chosen], axis=1)
    if (ops != ops[:, :1]).any():
        at = int(np.flatnonzero((ops != ops[:, :1]).any(axis=1))[0])
        kinds = sorted({names.OPS[int(o)] for o in ops[at]})
        return _not_joined(
            name,
            ranks,
            len(ranks),
            sum(map(len, parts)),
            f"the ranks' orders differ from number {at} on ({' against '.join(kinds)})",
        )
    return Joined(
        name,
        ranks,
        len(ranks),
        ops[:, 0],
        np.stack([c.start_ns for c in chosen], axis=1),
        np.stack([c.end_ns for c in chosen], axis=1),
        total - count,
    )


def _shifts(parts: list[t.Table]) -> list[int] | None:
    """How many rows to skip on each rank so that the collectives' ends fall together, on a shared
    clock; None where no shift is clearly the right one."""
    base = min(parts, key=len)
    if len(base) < 4 or max(len(p) for p in parts) - len(base) > _MAX_SHIFT:
        return None
    out = []
    for part in parts:
        costs = []
        for shift in range(len(part) - len(base) + 1):
            window = slice(shift, shift + len(base))
            if (part.op[window] != base.op).any():
                continue
            apart = np.abs(part.end_ns[window] - base.end_ns)
            costs.append((float(np.median(apart)), shift))
        costs.sort()
        if not costs or (len(costs) > 1 and costs[0][0] * 4 > costs[1][0]):
            return None
        out.append(costs[0][1])
    return out
