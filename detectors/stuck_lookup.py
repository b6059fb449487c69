"""stuck-lookup: a lookup that nobody will ever answer, while the shard owes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from detectors import thresholds as t
from detectors.pending import (
    CLIENT_KINDS,
    ServerSide,
    alive,
    is_not_queued,
    limit_seconds,
    pending_in,
    pictures,
    place_of,
    questions,
    seen_in,
    server_side,
    uses_a_down_shard,
    who_waits,
)
from detectors.rule import Answer, Rule
from detectors.stack_evidence import stack_side, weighed
from detectors.wedged_connection import wedges
from exporters import reasons
from exporters.snapshot import (
    Engine,
    Evidence,
    Finding,
    Pending,
    Process,
    ShardQuestion,
    Snapshot,
)

NAME = "stuck-lookup"
LOST_COMPLETION = "lost-completion"
NEVER_RECEIVED = "never-received"
NO_ANSWER = "no-answer"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Design, Definitions: an entry older than 1.5 x its timeout in 3 pictures >= 1 s apart, same
    id, and at the server nothing outstanding for its connections.

    A shard that is down explains what waits for it, and so does a wedged connection: silent
    then. With asynchronous loading also on the other ranks: what they prefetched for requests that
    one rank never answers for is not freed, and their loops soon wait for memory.
    """
    found, _ = wedges(engine, snapshot)
    explained = {wedge.process.page for wedge in found}
    explained |= {p.page for p in alive(engine) if uses_a_down_shard(p, snapshot)}
    chosen = pictures(snapshot)
    answers = [
        _judge_process(engine, process, chosen)
        for process in alive(engine)
        if process.page not in explained and not (explained and process.info.get("async_loading"))
    ]
    abstained = next((answer for answer in answers if answer.abstained), Answer())
    return Answer(
        tuple(f for answer in answers for f in answer.findings),
        abstained.abstained,
        abstained.reason,
        again=any(answer.again for answer in answers),
    )


def ask(engine: Engine, snapshot: Snapshot) -> tuple[ShardQuestion, ...]:
    """How the connections stand of a process whose lookup has outlived its own timeout."""
    return tuple(
        question
        for process in alive(engine)
        if any(p.age_seconds >= limit_seconds(p) / t.STUCK_TIMEOUTS for p in _lookups(process))
        for question in questions(process)
    )


def _lookups(process: Process) -> list[Pending]:
    """EXISTS before prefetches, which wait for them; each the oldest first. A scheduler's own
    entry ends at its timeout, or stays behind a request that was given up: no evidence."""
    return [p for kind in ("exists", "prefetch") for p in process.pending if p.kind == kind]


def _judge_process(engine: Engine, process: Process, chosen: Sequence[Snapshot]) -> Answer:
    entry = next((p for p in _lookups(process) if p.age_seconds >= limit_seconds(p)), None)
    if entry is None:
        return Answer()
    if seen_in(process, entry, chosen, limit_seconds(entry)) < t.PICTURES:
        return Answer(again=len(chosen) < t.PICTURES)
    before = [p for p in process.pending if p.kind in ("get", "set") and p.id < entry.id]
    if before:
        return Answer(
            abstained=f"{place_of(process)}: a lookup is pending for {entry.age_seconds:.1f} s "
            f"behind a {before[0].kind.upper()} that is not answered either",
            reason=reasons.OUTSTANDING,
        )
    server = server_side(process, chosen)
    if server.state == "owes":
        return Answer(
            abstained=f"{place_of(process)}: a lookup is pending for {entry.age_seconds:.1f} s "
            "and the shard still has an answer outstanding",
            reason=reasons.OUTSTANDING,
        )
    is_free = (
        is_not_queued(process, entry, chosen)
        if entry.kind == "exists"
        else _is_forgotten(process, entry, chosen)
    )
    if not is_free:
        return Answer(
            abstained=f"{place_of(process)}: a lookup is pending for {entry.age_seconds:.1f} s, "
            "perhaps behind others that are still under way",
            reason=reasons.OUTSTANDING,
        )
    side = stack_side(chosen[0], process, entry)
    return Answer((weighed(_finding(engine, process, entry, server), side),))


def _is_forgotten(process: Process, entry: Pending, chosen: Sequence[Snapshot]) -> bool:
    """Whether a prefetch is not just waiting its turn (LMCache loads for one at a time): one that
    came later has ended, or its client did nothing at all in these pictures."""
    later: set[int] = set()
    for picture in reversed(chosen):
        ids = {p.id for p in pending_in(picture, process) if p.kind == entry.kind}
        if later - ids:
            return True
        later |= {i for i in ids if i > entry.id}
    first = chosen[-1].process(process)
    return (
        first is not None
        and first.counters.get("client_calls", 0) == process.counters.get("client_calls", 0)
        and not any(p.kind in CLIENT_KINDS for p in process.pending)
    )


def _cause(entry: Pending, server: ServerSide) -> str:
    if entry.kind == "prefetch":
        return NO_ANSWER
    idle = server.idle_seconds
    if idle is not None and idle > entry.age_seconds + t.IDLE_SLACK_SECONDS:
        return NEVER_RECEIVED
    return LOST_COMPLETION


_WORDS = {
    LOST_COMPLETION: "the shard has answered and the answer was lost inside the client "
    "(lost completion)",
    NEVER_RECEIVED: "the request never reached the shard: the connection is cut in between",
    NO_ANSWER: "the client has nothing under way: a storage backend failed, or waits for CPU "
    "memory that never comes, and no answer was sent",
}


def _finding(engine: Engine, process: Process, entry: Pending, server: ServerSide) -> Finding:
    cause = _cause(entry, server)
    is_seen = server.state == "clear"
    stuck = [p for p in _lookups(process) if p.age_seconds >= limit_seconds(p)]
    what = "an EXISTS" if entry.kind == "exists" else "a prefetch"
    summary = f"{place_of(process)} waits for ever for {what}: {_WORDS[cause]}"
    if not is_seen:
        summary += "; the shard's side is unseen"
    evidence = [
        Evidence(
            "pending_seconds",
            entry.age_seconds,
            limit_seconds(entry),
            "seconds",
            f"{entry.kind} number {entry.id} of {entry.key_count} keys is pending for "
            f"{entry.age_seconds:.1f} s, the same in {t.PICTURES} pictures (timeout "
            f"{entry.timeout_seconds:g} s, limit {limit_seconds(entry):g} s), first key "
            f"{entry.first_key or 'unknown'}",
        ),
        server.evidence(),
    ]
    if len(stuck) > 1:
        text = f"{len(stuck)} lookups of this process are stuck, this is the oldest"
        evidence.append(Evidence("stuck_lookups", len(stuck), None, "", text))
    confidence = 0.8 if entry.kind == "prefetch" else 0.95
    return Finding(
        id=NAME,
        severity="critical",
        summary=summary,
        rank=process.rank,
        shard=process.shard or None,
        engine_id=engine.engine_id,
        since_seconds=entry.age_seconds,
        evidence=(*evidence, *who_waits(engine, process.rank)),
        confidence=confidence if is_seen else confidence / 2,
        cause=cause,
    )


RULE = Rule(NAME, ("pages", "valkey"), judge, ask)
