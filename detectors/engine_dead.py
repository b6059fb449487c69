"""engine-dead: all processes of an engine ended and left their pages; a clean end does not."""

from __future__ import annotations

from collections.abc import Sequence

from detectors import thresholds as t
from detectors.moved import lines_logged
from detectors.rule import Answer, Rule
from exporters.snapshot import Engine, Evidence, Finding, Process, Snapshot

NAME = "engine-dead"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """No process of it holds its page's lock, or none of its schedulers does, without which its
    workers do nothing; and the last beat within the hour. (Of dead workers `rank-silent` tells.)"""
    dead = [p for p in engine.processes if p.liveness == "dead"]
    schedulers = [p for p in engine.processes if "scheduler" in p.roles]
    is_whole = len(dead) == len(engine.processes)
    if not dead or not (is_whole or (schedulers and all(p in dead for p in schedulers))):
        return Answer()
    of = dead if is_whole else schedulers
    last = min(p.heartbeat_age_seconds for p in of)
    if last > t.ENGINE_DEAD_SECONDS:
        return Answer()
    return Answer((_finding(engine, snapshot, of, is_whole, last),))


def _finding(
    engine: Engine, snapshot: Snapshot, dead: Sequence[Process], is_whole: bool, last: float
) -> Finding:
    said = lines_logged(engine, snapshot, ("engine_died", "worker_died"))
    evidence = [
        Evidence(
            "heartbeat_age_seconds",
            last,
            None,
            "seconds",
            f"the last of {len(dead)} process{'es' if len(dead) > 1 else ''} was heard of "
            f"{last:.0f} s ago; none holds its page's lock",
        )
    ]
    if said:
        text = ", ".join(f"{kind} x {count}" for kind, count in said.items())
        evidence.append(Evidence("log_lines", float(sum(said.values())), 1.0, "", f"logs: {text}"))
    if is_whole:
        what = f"none of its processes runs, for {last:.0f} s{_first(dead)}"
    else:
        what = f"its scheduler has been gone for {last:.0f} s, and the ranks wait for nothing"
    return Finding(
        id=NAME,
        severity="critical",
        summary=f"engine {engine.engine_id} has died: {what}",
        engine_id=engine.engine_id,
        since_seconds=last,
        evidence=tuple(evidence),
        confidence=0.95,
        cause="" if is_whole else "scheduler",
    )


def _first(dead: Sequence[Process]) -> str:
    """Who went first, where the beats of one a second can tell."""
    ordered = sorted(dead, key=lambda p: -p.heartbeat_age_seconds)
    if len(ordered) < 2:
        return ""
    first, second = ordered[:2]
    if first.heartbeat_age_seconds - second.heartbeat_age_seconds < t.BEATS_APART_SECONDS:
        return ""
    who = "the scheduler" if first.rank is None else f"rank {first.rank}"
    return f"; {who} (pid {first.pid}) went first"


RULE = Rule(NAME, ("pages",), judge)
