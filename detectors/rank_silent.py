"""rank-silent: a rank is frozen, dead, missing or stays away, and lockstep waits for it."""

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
    Snapshot,
)

NAME = "rank-silent"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """A worker page frozen or dead while others of its engine are there, a rank without a page
    that others wait for, or one that runs and stays away from a step's collective. An engine of
    which nothing is left is not a silent rank."""
    now_seconds = snapshot.now_seconds
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
    absent = [
        _absent(engine, worker, waited, now_seconds)
        for rank, worker in workers.items()
        if worker.liveness == "alive"
        and (waited := _waited_for(engine, rank)) is not None
        and waited.open_seconds >= t.ABSENT_WAIT_SECONDS
        and any(_in_step(workers[r]) for r in waited.present_ranks if r in workers)
        # A rank that is frozen or dead may well be what this one itself waits for.
        and not silent
    ]
    return Answer(tuple(sorted(silent + missing + absent, key=lambda f: -f.since_seconds)))


def _waited_for(engine: Engine, rank: int) -> OpenCollective | None:
    """The longest open collective that others are in and this rank is not."""
    return max(
        (o for g in engine.groups for o in g.open if rank in o.missing_ranks),
        key=lambda o: o.open_seconds,
        default=None,
    )


def _waiting_evidence(
    rank: int, waited: OpenCollective | None, limit_seconds: float | None = None
) -> tuple[Evidence, ...]:
    if waited is None:
        return ()
    inside = ", ".join(map(str, waited.present_ranks))
    return (
        Evidence(
            "open_seconds",
            waited.open_seconds,
            limit_seconds,
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
    waiting = f", and {_ranks(len(waited.present_ranks))} for it" if waited is not None else ""
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
        summary=f"rank {rank} is missing: it has no page, and "
        f"{_ranks(len(waited.present_ranks))} for it",
        rank=rank,
        engine_id=engine.engine_id,
        since_seconds=waited.open_seconds,
        evidence=_waiting_evidence(rank, waited, t.MISSING_WAIT_SECONDS),
        confidence=0.8,
    )


def _in_step(worker: Process) -> bool:
    """Whether the worker is inside an engine step: at start-up ranks may wait long for another."""
    return worker.marks.get("step_started", 0.0) > worker.marks.get("step_finished", 0.0)


def _absent(engine: Engine, worker: Process, waited: OpenCollective, now_seconds: float) -> Finding:
    rank = worker.rank
    assert rank is not None  # workers() holds none without
    inside = [
        (worker.marks[f"{kind}_started"], kind)
        for kind in ("store", "load", "lookup")
        if worker.marks.get(f"{kind}_started", 0.0) > worker.marks.get(f"{kind}_finished", 0.0)
    ]
    began, kind = max(inside, default=(0.0, ""))
    what = f"; it is inside a {kind}" if kind else ""
    evidence = _waiting_evidence(rank, waited, t.ABSENT_WAIT_SECONDS)
    if kind:
        seconds = now_seconds - began
        text = f"rank {rank} has been inside a {kind} for {seconds:.1f} s"
        evidence += (Evidence(f"{kind}_seconds", seconds, None, "seconds", text),)
    return Finding(
        id=NAME,
        severity="critical",
        summary=f"rank {rank} (pid {worker.pid}) is absent: it runs, but "
        f"{_ranks(len(waited.present_ranks))} for it in {waited.op}{what}",
        rank=rank,
        engine_id=engine.engine_id,
        since_seconds=waited.open_seconds,
        evidence=evidence,
        confidence=0.9,
    )


def _ranks(count: int) -> str:
    return f"{count} ranks wait" if count > 1 else "1 rank waits"


RULE = Rule(NAME, ("pages",), judge)
