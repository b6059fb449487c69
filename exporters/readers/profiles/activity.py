"""What each rank's GPU did with its time: busy, copying, in gaps, and under which kernels."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from exporters.profile import DoingKind, GpuGap, KernelUse, RankProfile
from exporters.readers.profiles import intervals, names
from exporters.readers.profiles import table as t
from exporters.readers.profiles.load import Recording

LONGEST_GAPS: Final = 5
TOP_KERNELS: Final = 12
# A range is over a gap when it covers most of it.
_OVER: Final = 0.5


def rank_profile(recording: Recording, rank: int, begin_ns: int, end_ns: int) -> RankProfile:
    """One rank's figures but for its waits, over the record's [begin_ns, end_ns)."""
    rows = recording.table.take(recording.table.rank == rank)
    gpu = rows.take(np.isin(rows.kind, t.GPU_KINDS))
    wall_seconds = (end_ns - begin_ns) / 1e9
    collectives = rows.take(np.isin(rows.kind, t.COLLECTIVE_KINDS))
    has_times = len(gpu) > 0 and not recording.duration_only
    busy = intervals.union(gpu.start_ns, gpu.end_ns) if has_times else None
    work = gpu.take(gpu.kind != t.COLLECTIVE)
    d2h, h2d = (rows.take(rows.kind == kind) for kind in (t.COPY_D2H, t.COPY_H2D))
    return RankProfile(
        rank=rank,
        wall_seconds=wall_seconds,
        busy_seconds=_length(busy) if busy else None,
        work_seconds=_length(intervals.union(work.start_ns, work.end_ns)) if busy else None,
        collectives=len(collectives),
        collective_seconds=_seconds(collectives),
        d2h_bytes=int(d2h.bytes.clip(0).sum()),
        h2d_bytes=int(h2d.bytes.clip(0).sum()),
        d2h_seconds=_seconds(d2h),
        h2d_seconds=_seconds(h2d),
        gaps=_gaps(recording, rows, busy, begin_ns, end_ns) if busy else (),
    )


def _length(union: tuple[t.Int, t.Int]) -> float:
    return float((union[1] - union[0]).sum()) / 1e9


def _seconds(rows: t.Table) -> float:
    return float(rows.duration_ns.sum()) / 1e9


def _gaps(
    recording: Recording, rows: t.Table, busy: tuple[t.Int, t.Int], begin_ns: int, end_ns: int
) -> tuple[GpuGap, ...]:
    start, end = intervals.gaps(*busy, begin_ns, end_ns)
    cpu = rows.take(np.isin(rows.kind, t.CPU_KINDS))
    longest = np.argsort(start - end, kind="stable")[:LONGEST_GAPS]
    return tuple(
        GpuGap(
            (int(start[i]) - begin_ns) / 1e9,
            int(end[i] - start[i]) / 1e9,
            _range_over(recording, cpu, int(start[i]), int(end[i])),
        )
        for i in longest
    )


def _range_over(recording: Recording, cpu: t.Table, begin_ns: int, end_ns: int) -> str:
    """The name of the shortest CPU range over most of a gap; "" where there is none."""
    if not len(cpu):
        return ""
    inside = np.minimum(cpu.end_ns, end_ns) - np.maximum(cpu.start_ns, begin_ns)
    over = np.flatnonzero(inside >= _OVER * (end_ns - begin_ns))
    if not len(over):
        return ""
    # What a person named says more than a call that the profiler saw.
    named = over[cpu.kind[over] == t.RANGE]
    chosen = named if len(named) else over
    shortest = chosen[int(cpu.duration_ns[chosen].argmin())]
    return names.plain(recording.names[int(cpu.name[shortest])])


def kernel_uses(recording: Recording) -> tuple[KernelUse, ...]:
    """The kernels, collectives and copies with the most time, summed over ranks, longest first."""
    table = recording.table
    gpu = table.take(np.isin(table.kind, t.GPU_KINDS) & (table.rank >= 0))
    if not len(gpu):
        return ()
    _, inverse = t.distinct(gpu.name.astype(np.int64))
    seconds = np.bincount(inverse, weights=gpu.duration_ns / 1e9)
    total = float(seconds.sum()) or 1.0
    order = np.argsort(-seconds, kind="stable")[:TOP_KERNELS]
    return tuple(
        _use(recording, gpu.take(np.flatnonzero(inverse == i)), float(seconds[i]), total)
        for i in order
    )


def _use(recording: Recording, rows: t.Table, seconds: float, total: float) -> KernelUse:
    known = bool((rows.bytes >= 0).all())
    return KernelUse(
        name=recording.names[int(rows.name[0])],
        kind=kind_name(int(rows.kind[0])),
        calls=len(rows),
        seconds=seconds,
        gpu_share=seconds / total,
        blocks=_median(rows.blocks),
        threads=_median(rows.threads),
        bytes=int(rows.bytes.sum()) if known else None,
        median_seconds=float(np.median(rows.duration_ns)) / 1e9,
    )


def _median(column: npt.NDArray[np.signedinteger]) -> int:
    known = column[column > 0]
    return int(np.median(known)) if len(known) else 0


def kind_name(kind: int) -> DoingKind:
    """The word for a kind of row."""
    if kind in (t.COPY_D2H, t.COPY_H2D, t.COPY_OTHER, t.FILL):
        return "copy"
    if kind in t.COLLECTIVE_KINDS:
        return "collective"
    if kind == t.RANGE:
        return "range"
    return "call" if kind == t.CALL else "kernel"
