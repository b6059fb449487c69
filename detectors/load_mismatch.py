"""load-mismatch: chunks are reported as loaded that the server never gave: garbage as KV."""

from __future__ import annotations

from collections.abc import Mapping

from detectors.pending import alive, place_of
from detectors.rule import Answer, Rule
from exporters import reasons
from exporters.snapshot import Engine, Evidence, Finding, Process, Snapshot

NAME = "load-mismatch"
_ANSWERED = "client_get_answered_keys"
_FAILED = "client_get_failed_keys"
_LOADED = "load_l2_chunks"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """More chunks reported loaded from the shard than keys that its GETs brought."""
    findings = []
    blind = None
    for process in alive(engine):
        counters = process.counters
        if counters.get(_LOADED, 0) and not counters.get(_ANSWERED, 0) and process.rank is not None:
            blind = process
        excess = excess_chunks(process, snapshot)
        if excess > 0:
            findings.append(_finding(engine, process, excess, snapshot))
    if blind is not None and not findings:
        return Answer(
            abstained=f"{place_of(blind)} loads from its shard, and its client's results per key "
            "are not seen",
            reason=reasons.NOT_HOOKED,
        )
    return Answer(tuple(findings))


def excess_chunks(process: Process, snapshot: Snapshot) -> int:
    """Chunks reported loaded beyond the keys that came: the most over any stretch of time that
    began at rest (at the process's start, or in a picture with no load under way). Never positive
    for a client that reports what it has: a load is counted after the GETs that it waited for."""
    if not process.counters.get(_FAILED, 0):
        return 0
    worst = _excess(process.counters, {})
    for picture in snapshot.earlier:
        then = picture.process(process)
        if then is not None and _is_at_rest(then):
            worst = max(worst, _excess(process.counters, then.counters))
    return worst


def _excess(now: Mapping[str, int], then: Mapping[str, int]) -> int:
    loaded, answered, failed = (
        now.get(n, 0) - then.get(n, 0) for n in (_LOADED, _ANSWERED, _FAILED)
    )
    return loaded - (answered - failed) if failed > 0 else 0


def _is_at_rest(process: Process) -> bool:
    marks = process.marks
    loading = marks.get("load_started", 0.0) > marks.get("load_finished", 0.0)
    return not loading and not any(p.kind in ("get", "prefetch") for p in process.pending)


def _finding(engine: Engine, process: Process, excess: int, snapshot: Snapshot) -> Finding:
    counters = process.counters
    answered, failed = counters.get(_ANSWERED, 0), counters.get(_FAILED, 0)
    # The last load from the shard ended no earlier than the fault began.
    last = max(
        (
            o.end_seconds
            for o in process.operations
            if o.kind == "load" and o.tier in ("l2", "mixed")
        ),
        default=snapshot.now_seconds,
    )
    return Finding(
        id=NAME,
        severity="critical",
        summary=f"{place_of(process)} reported {excess} chunks as loaded that its shard never "
        "gave: garbage is used as KV, and kept in its CPU tier",
        rank=process.rank,
        shard=process.shard or None,
        engine_id=engine.engine_id,
        since_seconds=max(0.0, snapshot.now_seconds - last),
        evidence=(
            Evidence(
                "failed_keys",
                failed,
                0.0,
                "",
                f"{failed} of {answered} keys of its GETs brought nothing",
            ),
            Evidence(
                "excess_chunks",
                excess,
                0.0,
                "chunks",
                f"{counters.get(_LOADED, 0)} chunks reported loaded from the shard where "
                f"{answered - failed} keys came: {excess} too many since the loads began to differ",
            ),
        ),
        confidence=0.97,
    )


RULE = Rule(NAME, ("pages",), judge)
