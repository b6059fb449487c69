"""straggler-rank, as a profile shows it: one window, every collective in it, and what it did."""

from __future__ import annotations

from detectors import thresholds as t
from detectors.rule import Answer, severity_of_loss
from detectors.straggler_rank import NAME as STRAGGLER
from detectors.straggler_rank import last_share_limit
from exporters.profile import Doing, LateRank, Profile
from exporters.snapshot import Evidence, Finding

NAME = STRAGGLER
# The limits from which a profile's late rank is clear: at W = 2, above, and by chance.
CLEAR = (t.STRAGGLER_LAST_SHARE_TWO_RANKS, t.STRAGGLER_LAST_SHARE, t.STRAGGLER_P_VALUE)
_MUCH_OF_WAIT = 0.25


def judge(profile: Profile) -> Answer:
    """A finding where the late rank is clear and the others lose 5% of the wall to it or more."""
    late = profile.late
    if late is None or not late.is_clear or late.lost_share < t.LOST_WALL_SHARE:
        return Answer()
    return Answer((_finding(profile, late),))


def cause_of(late: LateRank) -> str:
    """What explains most of the wait, as a word for a machine; "" where nothing does."""
    found = [d for d in late.meanwhile if d.share >= _MUCH_OF_WAIT and d.share > d.base_share]
    copies = [d for d in found if d.kind == "copy" and is_to_host(d)]
    if copies:
        return "d2h-copy"
    ranges = [d for d in found if d.kind == "range"]
    if any("store" in d.name.lower() for d in ranges):
        return "store"
    if any("retrieve" in d.name.lower() or "load" in d.name.lower() for d in ranges):
        return "load"
    return next((d.kind for d in found), "")


def is_to_host(doing: Doing) -> bool:
    """Whether it is a copy from the GPU to host memory."""
    return "DtoH" in doing.name or "DeviceToHost" in doing.name


def doing_text(doing: Doing) -> str:
    """One thing that the late rank did while the others waited."""
    if doing.kind == "idle":
        return f"its GPU idle for {doing.share:.0%} of that time"
    moved = f", {doing.bytes / 1e9:.3g} GB" if doing.bytes else ""
    return f"{doing.kind} {doing.name!r} for {doing.share:.0%} of that time{moved}"


def _finding(profile: Profile, late: LateRank) -> Finding:
    size = max(len(g.ranks) for g in profile.groups if late.rank in g.ranks)
    limit = last_share_limit(size)
    evidence = [
        Evidence(
            "charged_share",
            late.charged_share,
            limit,
            "ratio",
            f"{late.charged_share:.0%} of all wait is for it (limit {limit:.0%}); it is last to "
            f"{late.last_share:.0%} of the {late.collectives} collectives that hold most of the "
            f"wait (by chance p = {late.chance:.1g}, limit {t.STRAGGLER_P_VALUE:g})",
        ),
        Evidence(
            "lost_wall_share",
            late.lost_share,
            t.LOST_WALL_SHARE,
            "ratio",
            f"each of the others waited {late.lost_share * profile.wall_seconds:.3g} s for it in "
            f"{profile.wall_seconds:.3g} s ({late.lost_share:.1%} of the wall, "
            f"limit {t.LOST_WALL_SHARE:.0%})",
        ),
    ]
    evidence += [
        Evidence("meanwhile", d.share, None, "ratio", f"meanwhile it did: {doing_text(d)}")
        for d in late.meanwhile
        if d.share >= _MUCH_OF_WAIT
    ]
    others = "the other rank loses" if size == 2 else f"the other {size - 1} lose"
    return Finding(
        id=NAME,
        severity=severity_of_loss(late.lost_share),
        summary=f"rank {late.rank} is late to the collectives; {others} "
        f"{late.lost_share:.0%} of their time waiting for it",
        rank=late.rank,
        evidence=tuple(evidence),
        confidence=late.confidence,
        cause=cause_of(late),
    )
