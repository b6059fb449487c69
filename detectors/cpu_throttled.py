"""cpu-throttled: a rank is late because its CPU is taken away, by a quota or by who shares it."""

from __future__ import annotations

from statistics import median

from detectors import thresholds as t
from detectors.moved import alive_with, moved
from detectors.rule import Answer, Rule, severity_of_loss, whole_group, window_of
from exporters.snapshot import Engine, Evidence, Finding, Group, Snapshot

NAME = "cpu-throttled"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """The quota held a rank for 10% of the time, or its main thread was ready without a CPU for 20%
    of it and twice as long as the others'; and the others lose 5% of the wall to this rank."""
    group = whole_group(engine)
    if group is None or not group.seconds:
        return Answer()
    workers = {p.rank: p for p in alive_with(engine, "worker") if p.rank in group.ranks}
    seen = {r: m for r, p in workers.items() if (m := moved(p, snapshot)) is not None}
    findings = []
    again = False
    for rank in workers:
        movement = seen.get(rank)
        seconds = t.MOVED_SECONDS if movement is None else movement.seconds
        if rank is None or (lost_share := _lost_share(group, rank, seconds)) < t.LOST_WALL_SHARE:
            continue
        if movement is None:
            again = True
            continue
        throttled = movement.share("throttled_nanoseconds")
        waiting = movement.share("runqueue_nanoseconds")
        others = [m.share("runqueue_nanoseconds") for r, m in seen.items() if r != rank]
        usual = median(others) if others else 0.0
        if throttled >= t.THROTTLED_SHARE:
            evidence = _evidence("throttled_share", throttled, t.THROTTLED_SHARE, "its CPU quota")
            findings.append(_finding(engine, rank, evidence, "quota", lost_share))
        elif waiting >= t.RUNQUEUE_SHARE and waiting >= t.RUNQUEUE_RATIO * usual:
            evidence = _evidence("runqueue_share", waiting, t.RUNQUEUE_SHARE, "other work")
            findings.append(_finding(engine, rank, evidence, "shared-core", lost_share))
    return Answer(tuple(findings), again=again)


def _lost_share(group: Group, rank: int, seconds: float) -> float:
    """What the group lost to this rank over the last so many seconds."""
    end = group.seconds[-1].second
    window = window_of(group.seconds, end - max(2, round(seconds)), end, len(group.ranks))
    return window.lost_share(group.ranks.index(rank)) if window.wall_seconds else 0.0


def _evidence(name: str, share: float, limit: float, holder: str) -> Evidence:
    return Evidence(
        name,
        share,
        limit,
        "ratio",
        f"{holder} kept its main thread from running for {share:.0%} of the time "
        f"(limit {limit:.0%})",
    )


def _finding(
    engine: Engine, rank: int, evidence: Evidence, cause: str, lost_share: float
) -> Finding:
    what = "its container's CPU quota holds it" if cause == "quota" else "it waits for a CPU"
    return Finding(
        id=NAME,
        severity=severity_of_loss(lost_share),
        summary=f"rank {rank} is late because {what}: {evidence.value:.0%} of the time, and the "
        f"others lose {lost_share:.0%} to it",
        rank=rank,
        engine_id=engine.engine_id,
        evidence=(
            evidence,
            Evidence(
                "lost_wall_share",
                lost_share,
                t.LOST_WALL_SHARE,
                "ratio",
                f"the others wait for it for {lost_share:.1%} of the wall "
                f"(limit {t.LOST_WALL_SHARE:.0%})",
            ),
        ),
        confidence=0.85,
        cause=cause,
    )


RULE = Rule(NAME, ("pages",), judge)
