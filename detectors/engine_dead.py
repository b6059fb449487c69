"""engine-dead: all processes of an engine ended and left their pages; a clean end does not."""

from __future__ import annotations

from detectors import thresholds as t
from detectors.moved import lines_logged
from detectors.rule import Answer, Rule
from exporters.snapshot import Engine, Evidence, Finding, Snapshot

NAME = "engine-dead"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """No process of it holds its page's lock, and the last beat within the hour."""
    if not engine.processes or any(p.liveness != "dead" for p in engine.processes):
        return Answer()
    last = min(p.heartbeat_age_seconds for p in engine.processes)
    if last > t.ENGINE_DEAD_SECONDS:
        return Answer()
    said = lines_logged(engine, snapshot, ("engine_died", "worker_died"))
    evidence = [
        Evidence(
            "heartbeat_age_seconds",
            last,
            None,
            "seconds",
            f"the last of its {len(engine.processes)} processes was heard of {last:.0f} s ago; "
            "none holds its page's lock",
        )
    ]
    if said:
        text = ", ".join(f"{kind} x {count}" for kind, count in said.items())
        evidence.append(Evidence("log_lines", float(sum(said.values())), 1.0, "", f"logs: {text}"))
    first = max(engine.processes, key=lambda p: p.heartbeat_age_seconds)
    who = "the scheduler" if first.rank is None else f"rank {first.rank}"
    return Answer(
        (
            Finding(
                id=NAME,
                severity="critical",
                summary=f"engine {engine.engine_id} has died: none of its processes runs, for "
                f"{last:.0f} s; {who} (pid {first.pid}) went first",
                engine_id=engine.engine_id,
                since_seconds=last,
                evidence=tuple(evidence),
                confidence=0.95,
            ),
        )
    )


RULE = Rule(NAME, ("pages",), judge)
