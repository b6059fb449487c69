"""rank-silent: a rank's process is stopped, gone or never came, and lockstep waits for it."""

from __future__ import annotations

from detectors import thresholds as t
from detectors.rule import Answer, Rule
from exporters import reasons
from exporters.snapshot import (
    FROZEN_AFTER_SECONDS,
    Engine,
    Evidence,
    Finding,
    OpenCollective,
    Process,
)

NAME = "rank-silent"


def judge(engine: Engine, now_seconds: float) -> Answer:
    """A worker page frozen or dead while others of its engine are there, or a rank without a page
    that others wait for. An engine of which nothing is left is not a silent rank."""
    if all(p.liveness == "dead" for p in engine.processes):
        return Answer(abstained="no process of the engine is left", reason=reasons.NO_WRITER)
    workers = engine.workers()
    silent = [
        _silent(engine, worker, _waited_for(engine, rank))
        for rank, worker in workers.items()
        if worker.liveness != "alive"
    ]
    missing = [
        _missing(engine, rank, waited)
        for rank in range(engine.world_size)
        if rank not in workers
        and (waited := _waited_for(engine, rank)) is not None
        and waited.open_seconds >= t.MISSING_WAIT_SECONDS
    ]
    return Answer(tuple(sorted(silent + missing, key=lambda f: -f.since_seconds)))


def _waited_for(engine: Engine, rank: int) -> OpenCollective | None:
    """The longest open collective that others are in and this rank is not."""
    return max(
        (o for g in engine.groups for o in g.open if rank in o.missing_ranks),
        key=lambda o: o.open_seconds,
        default=None,
    )


def _waiting_evidence(rank: int, waited: OpenCollective | None) -> tuple[Evidence, ...]:
    if waited is None:
        return ()
    inside = ", ".join(map(str, waited.present_ranks))
    return (
        Evidence(
            "open_seconds",
            waited.open_seconds,
            None,
            "seconds",
            f"{'ranks' if len(waited.present_ranks) > 1 else 'rank'} {inside} in {waited.op} "
            f"number {waited.sequence} for {waited.open_seconds:.1f} s, rank {rank} missing",
        ),
    )


def _silent(engine: Engine, worker: Process, waited: OpenCollective | None) -> Finding:
    rank, age = worker.rank, worker.heartbeat_age_seconds
    assert rank is not None  # workers() holds none without
    if worker.liveness == "frozen":
        state = "frozen: its process is there but does not run"
        lock = "the page's lock is held, so the process exists"
    else:
        state = "dead: its process is gone"
        lock = "the page's lock is free, so the process is gone"
    waiting = f", and {len(waited.present_ranks)} ranks wait for it" if waited is not None else ""
    return Finding(
        id=NAME,
        severity="critical",
        summary=f"rank {rank} (pid {worker.pid}) is {state}{waiting}",
        rank=rank,
        engine_id=engine.engine_id,
        since_seconds=age,
        evidence=(
            Evidence(
                "heartbeat_age_seconds",
                age,
                FROZEN_AFTER_SECONDS if worker.liveness == "frozen" else None,
                "seconds",
                f"last heartbeat {age:.1f} s ago; {lock}",
            ),
            *_waiting_evidence(rank, waited),
        ),
        confidence=0.99,
    )


def _missing(engine: Engine, rank: int, waited: OpenCollective) -> Finding:
    return Finding(
        id=NAME,
        severity="critical",
        summary=f"rank {rank} is missing: it has no page, and {len(waited.present_ranks)} ranks "
        "wait for it",
        rank=rank,
        engine_id=engine.engine_id,
        since_seconds=waited.open_seconds,
        evidence=_waiting_evidence(rank, waited),
        confidence=0.8,
    )


RULE = Rule(NAME, ("pages",), judge)
