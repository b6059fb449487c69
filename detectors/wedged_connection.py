"""wedged-connection: a GET that is never answered, such as of a missing key, holds a connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detectors import thresholds as t
from detectors.pending import (
    ServerSide,
    alive,
    keys_of,
    limit_seconds,
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

NAME = "wedged-connection"


@dataclass(frozen=True, slots=True)
class Wedge:
    """One GET or SET that holds its connection. `absent` are its keys that the shard does not
    have, of the `asked` ones."""

    process: Process
    entry: Pending
    absent: tuple[str, ...]
    asked: int
    server: ServerSide


def wedges(engine: Engine, snapshot: Snapshot) -> tuple[tuple[Wedge, ...], list[Answer]]:
    """The wedges, the oldest of each process, and for the others why it cannot be told yet.

    A GET whose key the shard does not have was answered with a null that stock LMCache's client
    takes for the begin of a chunk: decided at once, in two answers a second apart. One whose keys
    are (again) there is wedged once it outlived its timeout by half.
    """
    found = []
    open_answers = []
    chosen = pictures(snapshot)
    for process in alive(engine):
        if uses_a_down_shard(process, snapshot):
            continue
        for entry in process.pending:
            if entry.kind not in ("get", "set") or entry.age_seconds < t.GET_SUSPECT_SECONDS:
                continue
            result = _judge_entry(process, entry, chosen)
            if isinstance(result, Wedge):
                found.append(result)
                break
            if result is not None:
                open_answers.append(result)
    return tuple(found), open_answers


def _judge_entry(
    process: Process, entry: Pending, chosen: Sequence[Snapshot]
) -> Wedge | Answer | None:
    server = server_side(process, chosen)
    keys = keys_of(process, entry) if entry.kind == "get" else ()
    answers = [
        {key: shard.keys[key] for key in keys if key in shard.keys}
        for picture in chosen
        for shard in (picture.shard(process.shard),)
        if shard is not None and seen_in(process, entry, (picture,), t.GET_SUSPECT_SECONDS)
    ]
    answers = [answer for answer in answers if answer]
    absent = tuple(k for k in keys if len(answers) > 1 and not any(a.get(k, True) for a in answers))
    asked = len(answers[0]) if answers else 0
    if absent and server.state != "owes":
        return Wedge(process, entry, absent, asked, server)
    limit = limit_seconds(entry)
    is_new = len(chosen) < t.PICTURES
    if entry.age_seconds < limit:
        # Worth a second picture only where the shard can be asked for the keys.
        return Answer(again=True) if is_new and keys and process.shard else None
    if seen_in(process, entry, chosen, limit) < t.PICTURES:
        return Answer(again=is_new)
    if server.state == "owes":
        return Answer(
            abstained=f"{place_of(process)}: a {entry.kind.upper()} is pending for "
            f"{entry.age_seconds:.1f} s and the shard still has an answer outstanding",
            reason=reasons.OUTSTANDING,
        )
    return Wedge(process, entry, (), asked, server)


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Design, Definitions (stuck-lookup): a GET pending on an absent key is wedged-connection."""
    found, others = wedges(engine, snapshot)
    abstained = next((answer for answer in others if answer.abstained), Answer())
    return Answer(
        tuple(
            weighed(_finding(engine, wedge), stack_side(snapshot, wedge.process, wedge.entry))
            for wedge in found
        ),
        abstained.abstained,
        abstained.reason,
        again=any(answer.again for answer in others),
    )


def ask(engine: Engine, snapshot: Snapshot) -> tuple[ShardQuestion, ...]:
    """For GETs that are late: are their keys there, and does the shard owe them an answer?"""
    return tuple(
        question
        for process in alive(engine)
        for entry in process.pending
        if entry.kind in ("get", "set") and entry.age_seconds >= t.GET_SUSPECT_SECONDS
        for question in questions(process, keys_of(process, entry) if entry.kind == "get" else ())
    )


def _finding(engine: Engine, wedge: Wedge) -> Finding:
    process, entry = wedge.process, wedge.entry
    word = entry.kind.upper()
    place = place_of(process)
    is_seen = wedge.server.state == "clear"
    behind = [p for p in process.pending if p.id > entry.id]
    if wedge.absent:
        count = f"{len(wedge.absent)} of {entry.key_count} keys" if entry.key_count > 1 else "a key"
        summary = (
            f"{place} waits for ever for a GET of {count} that {process.shard} does not have; "
            "its connection serves nothing else any more"
        )
        cause, confidence = "missing-key", 0.97 if is_seen else 0.8
    else:
        summary = (
            f"{place} waits for a {word} that was never answered; its connection serves nothing "
            "else any more"
        )
        cause, confidence = "unanswered", 0.8 if is_seen else 0.4
    limit = None if wedge.absent else limit_seconds(entry)
    evidence = [
        Evidence(
            "pending_seconds",
            entry.age_seconds,
            limit,
            "seconds",
            f"{word} number {entry.id} of {entry.key_count} keys is pending for "
            f"{entry.age_seconds:.1f} s (timeout {entry.timeout_seconds:g} s), first key "
            f"{entry.first_key}",
        )
    ]
    if wedge.absent:
        evidence.append(
            Evidence(
                "absent_keys",
                len(wedge.absent),
                0.0,
                "",
                f"EXISTS at the shard: {len(wedge.absent)} of {wedge.asked} keys asked for are "
                f"absent, such as {wedge.absent[0]}",
            )
        )
    elif wedge.asked:
        text = f"the {wedge.asked} keys asked for are there (perhaps stored anew since)"
        evidence.append(Evidence("absent_keys", 0.0, 0.0, "", text))
    evidence.append(wedge.server.evidence())
    if behind:
        text = f"{len(behind)} later operations of this process are pending behind it"
        evidence.append(Evidence("pending_behind", len(behind), None, "", text))
    return Finding(
        id=NAME,
        severity="critical",
        summary=summary,
        rank=process.rank,
        shard=process.shard or None,
        engine_id=engine.engine_id,
        since_seconds=entry.age_seconds,
        evidence=(*evidence, *who_waits(engine, process.rank)),
        confidence=confidence,
        cause=cause,
    )


RULE = Rule(NAME, ("pages", "valkey"), judge, ask)
