"""Which rank was late, how sure that is, and what it did while the others waited for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from exporters.profile import Doing, LateRank
from exporters.readers.profiles import intervals, names
from exporters.readers.profiles import table as t
from exporters.readers.profiles.activity import kind_name
from exporters.readers.profiles.load import Recording
from exporters.readers.profiles.waits import Waits, charge

# Collectives in which nobody waits are last-arrived by chance; those that hold this share of the
# wait are the ones that somebody was late to.
_HEAVY_SHARE: Final = 0.9
_MOST_DOINGS: Final = 4
_LEAST_SHARE: Final = 0.05


def late_rank(
    recording: Recording,
    waits: Sequence[Waits],
    wall_seconds: float,
    clear: tuple[float, float, float],
) -> LateRank | None:
    """The rank with the most wait charged to it; None where nobody waited.

    `clear` are the limits from which it may be called late: the share of the wait at W = 2, at
    W > 2, and the probability by chance.
    """
    joined = [w for w in waits if len(w.group)]
    if not joined:
        return None
    charged: dict[int, float] = {}
    for w in joined:
        for rank, seconds in zip(w.group.ranks, w.charged(), strict=True):
            charged[rank] = charged.get(rank, 0.0) + float(seconds)
    total = sum(charged.values())
    if total <= 0:
        return None
    rank = max(charged, key=lambda r: charged[r])
    # A group that the rank is no part of says nothing against it.
    mine = [w for w in joined if rank in w.group.ranks]
    counted, last_count, size = _heavy(mine, rank)
    chance = _tail(last_count, counted, 1 / size)
    share = charged[rank] / total
    agrees = _agrees(mine, rank)
    seen = sum(len(w.group) for w in joined)
    unjoined = sum(w.group.unjoined for w in waits)
    limit = clear[0] if size == 2 else clear[1]
    last_share = last_count / counted if counted else 0.0
    is_clear = share >= limit and last_share >= limit and chance < clear[2] and agrees is not False
    trust = 1.0 if agrees else 0.5 if agrees is False else 0.9
    # The distance between the rank's share and what each would have by chance.
    distance = max(0.0, (last_share - 1 / size) / (1 - 1 / size))
    return LateRank(
        rank=rank,
        charged_seconds=charged[rank],
        charged_share=share,
        last_share=last_share,
        collectives=counted,
        chance=chance,
        lost_share=charged[rank] / (size - 1) / wall_seconds if wall_seconds > 0 else 0.0,
        confidence=round(0.95 * trust * distance * seen / (seen + unjoined), 2),
        agrees=agrees,
        is_clear=is_clear,
        meanwhile=() if recording.duration_only else _meanwhile(recording, mine, rank),
    )


def _heavy(waits: Sequence[Waits], rank: int) -> tuple[int, int, int]:
    """Of the collectives that hold most of the wait: how many, how many the rank was last to, and
    the size of the largest group."""
    depth = np.concatenate([np.nan_to_num(w.wait_seconds).max(axis=1) for w in waits])
    is_last = np.concatenate([w.last == w.group.ranks.index(rank) for w in waits])
    order = np.argsort(-depth, kind="stable")
    total = np.cumsum(depth[order])
    count = int(np.searchsorted(total, _HEAVY_SHARE * total[-1])) + 1
    heavy = order[:count]
    return count, int(is_last[heavy].sum()), max(len(w.group.ranks) for w in waits)


def _agrees(waits: Sequence[Waits], rank: int) -> bool | None:
    """Whether start skew charges the same rank as durations do, over the symmetric collectives."""
    by_skew: dict[int, float] = {}
    by_duration: dict[int, float] = {}
    for w in waits:
        if w.skew_matrix is None:
            continue
        duration = (w.group.end_ns - w.group.start_ns) / 1e9
        for matrix, out in (
            (w.skew_matrix, by_skew),
            (duration - duration.min(axis=1, keepdims=True), by_duration),
        ):
            amounts = charge(matrix, matrix.argmin(axis=1), len(w.group.ranks))
            for r, seconds in zip(w.group.ranks, amounts, strict=True):
                out[r] = out.get(r, 0.0) + float(seconds)
    if not by_skew:
        return None
    named = {max(out, key=lambda r: out[r]) for out in (by_skew, by_duration)}
    return named == {rank}


def _tail(successes: int, trials: int, probability: float) -> float:
    """P(X >= successes), X ~ Binomial(trials, probability)."""
    logs = [
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(probability)
        + (trials - k) * math.log1p(-probability)
        for k in range(successes, trials + 1)
    ]
    return min(1.0, math.fsum(map(math.exp, logs))) if logs else 0.0


def _meanwhile(recording: Recording, waits: Sequence[Waits], rank: int) -> tuple[Doing, ...]:
    """What ran on the late rank in the time before it came, on its own clock: nothing else is
    needed, since the others' wait ends with its arrival."""
    starts, ends = [], []
    for w in waits:
        position = w.group.ranks.index(rank)
        mine = w.last == position
        arrive = w.group.start_ns[mine, position]
        wait = np.rint(np.nan_to_num(w.wait_seconds[mine]).max(axis=1) * 1e9).astype(np.int64)
        starts.append(arrive - wait)
        ends.append(arrive)
    start, end = intervals.union(np.concatenate(starts), np.concatenate(ends))
    window = int((end - start).sum())
    rows = recording.table.take(recording.table.rank == rank)
    rows = rows.take(rows.kind != t.HOST_COLLECTIVE)
    if not window or not len(rows):
        return ()
    wall = int(rows.end_ns.max() - rows.start_ns.min())
    inside = intervals.overlap(start, end, rows.start_ns, rows.end_ns)
    usual = _usual(recording, rank, rows, wall)
    gpu = np.isin(rows.kind, t.GPU_KINDS)
    found = [
        *_by_name(recording, rows, inside, gpu, window, usual),
        *_by_name(recording, rows, inside, ~gpu, window, usual),
    ]
    if gpu.any():
        found.append(_idle(rows.take(gpu), start, end, window, usual))
    return tuple(d for d in found if d.share >= _LEAST_SHARE)


@dataclass(frozen=True)
class _Usual:
    """What explains nothing: the share of a record that each thing fills where nobody is waited
    for. `shares` by whether it is on the GPU and plain name; `idle` of the GPU."""

    shares: dict[tuple[bool, str], float]
    idle: float


def _usual(recording: Recording, late: int, mine: t.Table, wall: int) -> _Usual:
    """Of the other ranks; a rank that is always late is always doing what makes it late. Of the
    late rank itself where the record shows nothing of the others."""
    table = recording.table
    others = []
    for rank in np.unique(table.rank[table.rank != late]):
        rows = table.take(table.rank == rank)
        span = int(rows.end_ns.max() - rows.start_ns.min())
        rows = rows.take(rows.kind != t.HOST_COLLECTIVE)
        if span and len(rows):
            others.append((rows, span))
    shares: dict[tuple[bool, str], float] = {}
    idles = []
    ranks = others or [(mine, wall)]
    for rows, span in ranks:
        gpu = np.isin(rows.kind, t.GPU_KINDS)
        for on_gpu, mask in ((True, gpu), (False, ~gpu)):
            for label, amount in _ns_by_name(recording, rows, mask).items():
                key = (on_gpu, label)
                shares[key] = shares.get(key, 0.0) + amount / span / len(ranks)
        if gpu.any():
            busy = intervals.union(rows.start_ns[gpu], rows.end_ns[gpu])
            idles.append(1 - int((busy[1] - busy[0]).sum()) / span)
    return _Usual(shares, sum(idles) / len(idles) if idles else 0.0)


def _by_name(
    recording: Recording,
    rows: t.Table,
    inside: t.Int,
    mask: npt.NDArray[np.bool_],
    window: int,
    usual: _Usual,
) -> list[Doing]:
    """Sums by plain name, those first that are more in the waits than is usual."""
    index = np.flatnonzero(mask & (inside > 0))
    if not len(index):
        return []
    found: dict[tuple[int, str], list[float]] = {}
    ids, inverse = np.unique(rows.name[index], return_inverse=True)
    kind_of = {int(n): int(k) for n, k in zip(rows.name[index], rows.kind[index], strict=True)}
    for position, name_id in enumerate(ids):
        chosen = index[inverse == position]
        label = names.plain(recording.names[int(name_id)])
        sums = found.setdefault((kind_of[int(name_id)], label), [0.0, 0.0])
        sums[0] += float(inside[chosen].sum())
        sums[1] += float(rows.bytes[chosen].clip(0).sum())
    doings = [
        Doing(
            kind_name(kind),
            label,
            sums[0] / 1e9,
            min(1.0, sums[0] / window),
            min(1.0, usual.shares.get((kind in t.GPU_KINDS, label), 0.0)),
            int(sums[1]) if kind_name(kind) == "copy" else 0,
        )
        for (kind, label), sums in found.items()
    ]
    doings.sort(key=lambda d: (-(d.share - d.base_share), d.name))
    return doings[:_MOST_DOINGS]


def _ns_by_name(
    recording: Recording, rows: t.Table, mask: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """Nanoseconds in all, by plain name."""
    ids, inverse = np.unique(rows.name[mask], return_inverse=True)
    total = np.bincount(inverse, weights=rows.duration_ns[mask])
    out: dict[str, float] = {}
    for name_id, amount in zip(ids, total, strict=True):
        label = names.plain(recording.names[int(name_id)])
        out[label] = out.get(label, 0.0) + float(amount)
    return out


def _idle(gpu: t.Table, start: t.Int, end: t.Int, window: int, usual: _Usual) -> Doing:
    busy = intervals.union(gpu.start_ns, gpu.end_ns)
    inside = int(intervals.overlap(*busy, start, end).sum())
    return Doing("idle", "GPU idle", (window - inside) / 1e9, 1 - inside / window, usual.idle)
