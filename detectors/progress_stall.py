"""progress-stall: there are requests, the engine runs, and no step of a prompt is made."""

from __future__ import annotations

from detectors import thresholds as t
from detectors.moved import alive_with, moved
from detectors.rule import Answer, Rule
from detectors.stack_evidence import engine_side, weighed
from exporters import reasons
from exporters.snapshot import Engine, Evidence, Finding, Process, Snapshot

NAME = "progress-stall"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Admitted less finished above 0, no token scheduled between the pictures, and the last step of
    a prompt (or the engine's start) longer ago than 30 s and 15 mean steps. The gauge of running
    requests is not used: it read 0 in a public wedge."""
    schedulers = alive_with(engine, "scheduler")
    if not schedulers:
        return Answer(abstained="no living scheduler has a page", reason=reasons.NOT_ASKED)
    findings = []
    again = False
    for scheduler in schedulers:
        unfinished = _unfinished(scheduler)
        if unfinished <= 0:
            continue
        # A long step of decoding is progress too: until it ends, nothing new is made up.
        last = max(
            scheduler.marks.get("prefill_scheduled", scheduler.started_seconds),
            *(p.marks.get("step_finished", 0.0) for p in engine.workers().values()),
            0.0,
        )
        still_seconds = snapshot.now_seconds - last
        limit_seconds = max(t.PROGRESS_SECONDS, t.PROGRESS_MEAN_STEPS * _mean_step(engine))
        if still_seconds < limit_seconds:
            continue
        movement = moved(scheduler, snapshot)
        if movement is None:
            again = True
        elif movement.by("scheduled_tokens") == 0 and movement.by("requests_finished") == 0:
            made = _finding(engine, scheduler, unfinished, still_seconds, limit_seconds)
            findings.append(weighed(made, engine_side(engine, snapshot)))
    return Answer(tuple(findings), again=again)


def _unfinished(scheduler: Process) -> int:
    counters = scheduler.counters
    return counters.get("requests_admitted", 0) - counters.get("requests_finished", 0)


def _mean_step(engine: Engine) -> float:
    """Seconds, of the slowest worker."""
    return max(
        (
            p.counters.get("step_nanoseconds", 0) / 1e9 / steps
            for p in engine.workers().values()
            if (steps := p.counters.get("steps", 0))
        ),
        default=0.0,
    )


def _finding(
    engine: Engine,
    scheduler: Process,
    unfinished: int,
    still_seconds: float,
    limit_seconds: float,
) -> Finding:
    return Finding(
        id=NAME,
        severity="critical",
        summary=f"engine {engine.engine_id} makes no progress: {unfinished} "
        f"request{'s are' if unfinished > 1 else ' is'} unfinished, and no step of a prompt for "
        f"{still_seconds:.0f} s",
        engine_id=engine.engine_id,
        since_seconds=still_seconds,
        evidence=(
            Evidence(
                "still_seconds",
                still_seconds,
                limit_seconds,
                "seconds",
                f"the last step with tokens of a prompt was made up {still_seconds:.0f} s ago "
                f"(limit {limit_seconds:.0f} s)",
            ),
            Evidence(
                "unfinished_requests",
                float(unfinished),
                1.0,
                "",
                f"{scheduler.counters.get('requests_admitted', 0)} requests admitted, "
                f"{scheduler.counters.get('requests_finished', 0)} finished",
            ),
        ),
        confidence=0.9,
    )


RULE = Rule(NAME, ("pages",), judge)
