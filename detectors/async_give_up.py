"""async-give-up: prefetches that end after their request was given up and recomputed."""

from __future__ import annotations

from detectors import thresholds as t
from detectors.rule import Answer, Rule
from exporters import reasons
from exporters.snapshot import Engine, Evidence, Finding, Operation, Process, Snapshot

NAME = "async-give-up"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Of a rank's prefetches of the last minute 10%, and 3 at least, took longer than the lookup's
    timeout: the shard worked for nothing, and the engine computed what was on its way."""
    workers = [p for p in engine.workers().values() if p.info.get("async_loading")]
    if not workers:
        return Answer()  # loads are made inside the step, and nothing is given up
    late: dict[int, tuple[list[Operation], int, float]] = {}
    for process in workers:
        limit = _limit_seconds(process)
        if process.rank is None or not limit:
            continue
        recent = [
            o
            for o in process.operations
            if o.kind == "lookup"
            and o.end_seconds >= snapshot.now_seconds - t.GIVE_UP_WINDOW_SECONDS
        ]
        slow = [o for o in recent if o.end_seconds - o.start_seconds > limit]
        if len(slow) >= t.GIVE_UP_PREFETCHES and len(slow) >= t.GIVE_UP_SHARE * len(recent):
            late[process.rank] = (slow, len(recent), limit)
    if not late:
        if not any(_limit_seconds(p) for p in workers):
            return Answer(
                abstained="its pages name no timeout of a lookup", reason=reasons.NOT_HOOKED
            )
        return Answer()
    rank = max(late, key=lambda r: len(late[r][0]))
    return Answer((_finding(engine, rank, sorted(late), *late[rank], snapshot),))


def _limit_seconds(process: Process) -> float:
    timeouts = process.info.get("timeouts")
    value = timeouts.get("lookup_seconds") if isinstance(timeouts, dict) else None
    return float(value) if isinstance(value, int | float) else 0.0


def _finding(
    engine: Engine,
    rank: int,
    ranks: list[int],
    slow: list[Operation],
    count: int,
    limit: float,
    snapshot: Snapshot,
) -> Finding:
    share = len(slow) / count
    longest = max(o.end_seconds - o.start_seconds for o in slow)
    who = f"rank {rank}" if len(ranks) == 1 else f"{len(ranks)} ranks, most on rank {rank}"
    shard = engine.workers()[rank].shard
    return Finding(
        id=NAME,
        severity="warning",
        summary=f"{share:.0%} of the prefetches end after their request was given up ({who}): it "
        f"is computed anew, and what the shard sent is thrown away",
        rank=rank if len(ranks) == 1 else None,
        shard=(shard or None) if len(ranks) == 1 else None,
        engine_id=engine.engine_id,
        since_seconds=max(0.0, snapshot.now_seconds - min(o.end_seconds for o in slow)),
        evidence=(
            Evidence(
                "late_prefetches",
                float(len(slow)),
                float(t.GIVE_UP_PREFETCHES),
                "",
                f"{len(slow)} of {count} prefetches of the last minute took longer than the "
                f"timeout of {limit:g} s, the longest {longest:.1f} s",
            ),
        ),
        confidence=0.9,
    )


RULE = Rule(NAME, ("pages",), judge)
