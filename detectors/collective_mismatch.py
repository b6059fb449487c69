"""collective-mismatch: ranks entered different operations at one place of their group's order."""

from __future__ import annotations

from collections import Counter

from detectors import thresholds as t
from detectors.rule import Answer, Rule
from exporters.snapshot import Engine, Evidence, Finding, Group, Mismatch, Snapshot

NAME = "collective-mismatch"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """One is enough: from then on every collective of the group pairs the wrong calls, which hangs
    or mixes data."""
    findings = [
        _finding(engine, group, snapshot)
        for group in engine.groups
        if len(group.mismatches) >= t.MISMATCHED_COLLECTIVES
    ]
    return Answer(tuple(findings))


def _finding(engine: Engine, group: Group, snapshot: Snapshot) -> Finding:
    first = min(group.mismatches, key=lambda m: m.sequence)
    rank, usual = _odd(group, first)
    told = ", ".join(
        f"rank {r} in {op}" for r, op in zip(group.ranks, first.ops, strict=True) if op
    )
    who = "its ranks" if rank is None else f"rank {rank}"
    beside = "different operations" if rank is None else f"another operation than {usual}"
    return Finding(
        id=NAME,
        severity="critical",
        summary=f"{who} of group {group.name} entered {beside} as collective number "
        f"{first.sequence}: what follows is paired wrongly, and hangs or mixes data",
        rank=rank,
        engine_id=engine.engine_id,
        since_seconds=max(0.0, snapshot.now_seconds - first.arrive_seconds),
        evidence=(
            Evidence(
                "mismatched_collectives",
                float(len(group.mismatches)),
                float(t.MISMATCHED_COLLECTIVES),
                "",
                f"number {first.sequence}: {told}",
            ),
        ),
        confidence=0.95,
    )


def _odd(group: Group, mismatch: Mismatch) -> tuple[int | None, str]:
    """The one rank that differs from all others, and what those did; with two ranks nobody is."""
    counts = Counter(op for op in mismatch.ops if op)
    usual, most = counts.most_common(1)[0]
    odd = [r for r, op in zip(group.ranks, mismatch.ops, strict=True) if op and op != usual]
    return (odd[0], usual) if len(odd) == 1 and most > 1 else (None, usual)


RULE = Rule(NAME, ("pages",), judge)
