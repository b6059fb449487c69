"""idle-gpu: a rank's GPU had no work for a large part of a profile, and what the CPU did then."""

from __future__ import annotations

from detectors import thresholds as t
from detectors.rule import Answer
from exporters import reasons
from exporters.profile import Profile, RankProfile
from exporters.snapshot import Evidence, Finding

NAME = "idle-gpu"


def judge(profile: Profile) -> Answer:
    """One finding for the ranks idle in a share >= 0.3 of the record, for the idlest of them."""
    seen = [rank for rank in profile.ranks if rank.idle_share is not None]
    if not seen:
        return Answer(abstained="no GPU work was recorded", reason=reasons.TOO_FEW)
    longest = max(rank.wall_seconds for rank in seen)
    if longest < t.IDLE_GPU_MIN_SECONDS:
        return Answer(
            abstained=f"the record is {longest:.3f} s long, needs {t.IDLE_GPU_MIN_SECONDS} s",
            reason=reasons.TOO_FEW,
        )
    idle = [rank for rank in seen if _idle(rank) >= t.IDLE_GPU_SHARE]
    if not idle:
        return Answer()
    return Answer((_finding(max(idle, key=_idle), idle, seen),))


def _idle(rank: RankProfile) -> float:
    return rank.idle_share or 0.0


def _finding(worst: RankProfile, idle: list[RankProfile], seen: list[RankProfile]) -> Finding:
    share = _idle(worst)
    evidence = [
        Evidence(
            "idle_share",
            share,
            t.IDLE_GPU_SHARE,
            "ratio",
            f"rank {worst.rank}'s GPU had no kernel and no copy for {share:.0%} of "
            f"{worst.wall_seconds:.3g} s (limit {t.IDLE_GPU_SHARE:.0%})",
        )
    ]
    if worst.gaps:
        gap = worst.gaps[0]
        under = f"under {gap.under!r}" if gap.under else "under no range that was recorded"
        evidence.append(
            Evidence(
                "longest_gap_seconds",
                gap.seconds,
                None,
                "seconds",
                f"its longest gap is {gap.seconds * 1e3:.3g} ms, "
                f"{gap.start_seconds:.3g} s into the record, {under}",
            )
        )
    others = [rank for rank in seen if rank.rank != worst.rank]
    if others:
        text = ", ".join(f"rank {rank.rank} {_idle(rank):.0%}" for rank in others[:8])
        evidence.append(
            Evidence("other_ranks", len(others), None, "ranks", f"idle on the others: {text}")
        )
    who = f"{len(idle)} of {len(seen)} GPUs are" if len(seen) > 1 else "the GPU is"
    return Finding(
        id=NAME,
        severity="warning",
        summary=f"{who} idle for {t.IDLE_GPU_SHARE:.0%} of the record or more, "
        f"rank {worst.rank} for {share:.0%}",
        rank=worst.rank,
        evidence=tuple(evidence),
        confidence=0.95,
    )
