"""The rules on what only a log says: degraded mode, a broken reference, a group of one, a hand-off.

Each takes the counts of known lines (exporters.log_lines) of the engine's living processes, or of
the logs that were given.
"""

from __future__ import annotations

from detectors.moved import lines_logged, moved
from detectors.rule import Answer, Rule
from exporters import reasons
from exporters.snapshot import Engine, Evidence, Finding, Severity, Snapshot

DEGRADED = "degraded-engine"
REFCOUNT = "refcount-error"
WRONG_GROUP = "wrong-collective-group"
HANDOFF = "handoff-blocked"


def _blind(engine: Engine, snapshot: Snapshot) -> Answer | None:
    """Pages of a version that counts no lines, and no log given."""
    is_counted = any("log_degraded" in p.counters for p in engine.processes)
    if is_counted or snapshot.logs:
        return None
    return Answer(abstained="no log was counted or given", reason=reasons.NOT_ASKED)


def judge_degraded(engine: Engine, snapshot: Snapshot) -> Answer:
    """A process went into degraded mode once more than it came out of it: every lookup misses."""
    said = lines_logged(engine, snapshot, ("degraded", "recovered", "unhealthy_skip"))
    times, back = said.get("degraded", 0), said.get("recovered", 0)
    of_pages = sum(  # one rank that came back is no comfort for another that did not
        max(0, p.counters.get("log_degraded", 0) - p.counters.get("log_recovered", 0))
        for p in engine.processes
    )
    standing = max(of_pages, times - back)
    if standing <= 0:
        return _blind(engine, snapshot) or Answer()
    skipped = said.get("unhealthy_skip", 0)
    text = f"went into degraded mode {times} times, came back {back} times"
    more = f"; {skipped} operations skipped since" if skipped else ""
    return _found(
        DEGRADED,
        "critical",
        engine,
        "LMCache runs in degraded mode: every lookup misses, nothing is stored, and each prompt is "
        "computed whole",
        standing,
        text + more,
    )


def judge_refcount(engine: Engine, snapshot: Snapshot) -> Answer:
    """A reference given back twice, or memory used after it was freed: another prompt's chunk may
    have been written there. A pin given back twice is none: stock LMCache logs that in health."""
    said = lines_logged(engine, snapshot, ("double_free", "invalidated"))
    if not said:
        return _blind(engine, snapshot) or Answer()
    return _found(
        REFCOUNT,
        "critical",
        engine,
        "LMCache's counts of who uses a chunk are broken: memory may be given to two prompts at "
        "once",
        sum(said.values()),
        _listed(said),
    )


def judge_wrong_group(engine: Engine, snapshot: Snapshot) -> Answer:
    """Loaded chunks were broadcast over a group in which the receiver is alone."""
    said = lines_logged(engine, snapshot, ("wrong_group",))
    if not said:
        return _blind(engine, snapshot) or Answer()
    return _found(
        WRONG_GROUP,
        "critical",
        engine,
        "what rank 0 loads is broadcast over a group that holds no other rank: the others get "
        "nothing, and a hit fails the request",
        said["wrong_group"],
        _listed(said),
    )


def judge_handoff(engine: Engine, snapshot: Snapshot) -> Answer:
    """KV that the decode side did not fetch in time, more of it between the pictures: prefill keeps
    the blocks until then, and has fewer for new prompts."""
    kinds = ("handoff_expired", "handoff_failed")
    said = lines_logged(engine, snapshot, kinds)
    if not said:
        return _blind(engine, snapshot) or Answer()
    movements = [m for p in engine.processes if (m := moved(p, snapshot)) is not None]
    if not movements and not snapshot.logs:
        return Answer(again=True)
    fresh = sum(m.by(*(f"log_{kind}" for kind in kinds)) for m in movements)
    if not fresh and not snapshot.logs:
        return Answer()
    cause = "failed" if "handoff_failed" in said else "expired"
    return _found(
        HANDOFF,
        "warning",
        engine,
        "the decode side takes its KV late or not at all: prefill keeps the blocks meanwhile and "
        "has fewer for new prompts",
        fresh or sum(said.values()),
        _listed(said),
        cause,
    )


def _listed(said: dict[str, int]) -> str:
    return "logged: " + ", ".join(f"{kind} x {count}" for kind, count in said.items())


def _found(
    name: str,
    severity: Severity,
    engine: Engine,
    summary: str,
    count: int,
    text: str,
    cause: str = "",
) -> Answer:
    evidence = (Evidence("log_lines", float(count), 1.0, "", text),)
    finding = Finding(
        id=name,
        severity=severity,
        summary=summary,
        engine_id=engine.engine_id,
        evidence=evidence,
        confidence=0.9,
        cause=cause,
    )
    return Answer((finding,))


DEGRADED_RULE = Rule(DEGRADED, ("pages", "logs"), judge_degraded)
REFCOUNT_RULE = Rule(REFCOUNT, ("pages", "logs"), judge_refcount)
WRONG_GROUP_RULE = Rule(WRONG_GROUP, ("pages", "logs"), judge_wrong_group)
HANDOFF_RULE = Rule(HANDOFF, ("pages", "logs"), judge_handoff)
