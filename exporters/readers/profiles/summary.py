"""A Recording's answers as one Profile, and by name what it could not answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from exporters import reasons
from exporters.profile import GroupWaits, Profile, RankProfile
from exporters.readers.profiles import names
from exporters.readers.profiles import table as t
from exporters.readers.profiles.activity import kernel_uses, rank_profile
from exporters.readers.profiles.join import join
from exporters.readers.profiles.joined import Joined
from exporters.readers.profiles.late import late_rank
from exporters.readers.profiles.load import Recording, load
from exporters.readers.profiles.waits import Waits, waits_of
from exporters.snapshot import Unseen


def profile_of(
    recording: Recording, clear: tuple[float, float, float]
) -> tuple[Profile, tuple[Unseen, ...], tuple[Waits, ...]]:
    """Everything that a Recording says; `clear` as in `late.late_rank`."""
    table = recording.table
    begin_ns, end_ns = window_of(table.take(table.rank >= 0))
    groups = join(recording)
    waits = [waits_of(g, recording.shares_clock) for g in groups if len(g)]
    ranks = [_ranked(recording, rank, begin_ns, end_ns) for rank in recording.ranks]
    wall_seconds = max((r.wall_seconds for r in ranks), default=0.0)
    late = late_rank(recording, waits, wall_seconds, clear)
    profile = Profile(
        wall_seconds=wall_seconds,
        ranks=tuple(_with_waits(rank, waits) for rank in ranks),
        groups=tuple(_group(g, waits) for g in groups),
        kernels=kernel_uses(recording),
        late=late,
        multiprocessors=recording.device.multiprocessors,
        memory_bytes_per_second=recording.device.memory_bytes_per_second,
        device=recording.device.name,
        op_waits=_op_waits(waits),
    )
    unseen = (*recording.unseen, *_unseen(recording, profile))
    return profile, unseen, tuple(waits)


def read(
    paths: Sequence[Path], ranks: Sequence[int], clear: tuple[float, float, float]
) -> tuple[Profile, tuple[Unseen, ...], Recording, tuple[Waits, ...]]:
    """Files as a Profile. Raises ProfileError where two files claim one rank."""
    recording = load(paths, ranks)
    profile, unseen, waits = profile_of(recording, clear)
    return profile, unseen, recording, waits


def window_of(rows: t.Table) -> tuple[int, int]:
    """From the first to the last work of a GPU (or collective), in ns; of anything where there is
    none. A CPU range that was open for the whole run must not make the GPUs look idle."""
    work = np.isin(rows.kind, (*t.GPU_KINDS, t.HOST_COLLECTIVE))
    rows = rows.take(work) if work.any() else rows
    return (int(rows.start_ns.min()), int(rows.end_ns.max())) if len(rows) else (0, 0)


def _ranked(recording: Recording, rank: int, begin_ns: int, end_ns: int) -> RankProfile:
    """Over the whole record where ranks share a clock, else over the rank's own."""
    if not recording.shares_clock:
        begin_ns, end_ns = window_of(recording.table.take(recording.table.rank == rank))
    return rank_profile(recording, rank, begin_ns, end_ns)


def _with_waits(rank: RankProfile, waits: Sequence[Waits]) -> RankProfile:
    mine = [(w, w.group.ranks.index(rank.rank)) for w in waits if rank.rank in w.group.ranks]
    if not mine:
        return rank
    skews = [w.by_skew[i] for w, i in mine if w.by_skew is not None]
    told = [(w, i) for w, i in mine if w.without_basis < len(w.group)]
    return replace(
        rank,
        wait_seconds=float(sum(w.total()[i] for w, i in told)) if told else None,
        wait_by_duration_seconds=float(sum(w.by_duration[i] for w, i in mine)),
        wait_by_skew_seconds=float(sum(skews)) if len(skews) == len(mine) else None,
        charged_seconds=float(sum(w.charged()[i] for w, i in told)) if told else None,
        last_count=int(sum(w.last_count()[i] for w, i in told)) if told else None,
    )


def _group(group: Joined, waits: Sequence[Waits]) -> GroupWaits:
    own = next((w for w in waits if w.group is group), None)
    ops = Counter(names.OPS[int(op)] for op in group.op)
    return GroupWaits(
        name=group.name,
        ranks=group.ranks,
        size=group.size,
        ops=dict(ops),
        joined=len(group),
        unjoined=group.unjoined,
        without_basis=own.without_basis if own else 0,
        problem=group.problem,
        clock=own.clock.reason if own else "",
    )


def _op_waits(waits: Sequence[Waits]) -> dict[str, float]:
    """Wait in rank-seconds by op."""
    out: dict[str, float] = {}
    for w in waits:
        for op in np.unique(w.group.op):
            total = float(np.nansum(w.wait_seconds[w.group.op == op]))
            name = names.OPS[int(op)]
            out[name] = out.get(name, 0.0) + total
    return out


def _unseen(recording: Recording, profile: Profile) -> list[Unseen]:
    found: list[Unseen] = []
    table = recording.table
    if not recording.ranks:
        return found
    if not profile.groups:
        what = "no collectives: neither NCCL or RCCL kernels nor gloo calls"
        found.append(
            Unseen(
                "collective wait",
                reasons.NO_COLLECTIVES,
                f"collective wait is unseen: the files hold {what}",
                "record a window in which the engine runs with more than one rank",
            )
        )
    # Streams that could not be paired are told once, however many there are.
    for problem in dict.fromkeys(g.problem for g in profile.groups if g.problem):
        named = [g for g in profile.groups if g.problem == problem]
        names_of = ", ".join(g.name for g in named if g.name)[:200]
        of = f" of {names_of}" if names_of else ""
        found.append(
            Unseen(
                "collective wait",
                reasons.MISSING_RANK
                if "here" in problem or "only" in problem
                else reasons.UNJOINED,
                f"collective wait{of} is unseen: {problem}",
                _mend(problem),
            )
        )
    for group in profile.groups:
        if group.without_basis:
            found.append(
                Unseen(
                    "collective wait",
                    reasons.NO_CLOCK,
                    f"the wait of {group.without_basis} rooted or point-to-point collectives is "
                    f"unseen: {group.clock}",
                    "record all ranks on one host, or in one nsys session",
                )
            )
    if not np.isin(table.kind, t.GPU_KINDS).any():
        found.append(
            Unseen(
                "GPU",
                reasons.TOO_FEW,
                "the GPU's time is unseen: no GPU work was recorded",
                "record with CUDA activities: ProfilerActivity.CUDA, or nsys --trace=cuda",
            )
        )
    elif (
        not np.isin(table.kind, t.CPU_KINDS).any()
        and not recording.duration_only
        and not any(u.reason == reasons.MISSING_TABLE for u in recording.unseen)
    ):
        found.append(
            Unseen(
                "CPU ranges",
                reasons.TOO_FEW,
                "what the CPU was doing is unseen: no NVTX and no record_function ranges",
                "record with nsys --trace=cuda,nvtx, or ProfilerActivity.CPU",
            )
        )
    if recording.duration_only:
        found.append(
            Unseen(
                "timeline",
                reasons.NO_CLOCK,
                "busy time, gaps and what the late rank did are unseen: these files hold "
                "durations, and no times on one clock",
                "record a window with nsys or torch.profiler",
            )
        )
    return found


def _mend(problem: str) -> str:
    if "only" in problem or "here" in problem:
        return "give the files of all ranks"
    return "record all ranks over the same window"
