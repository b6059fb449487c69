"""shard-down: a cache shard that ranks use refuses, does not answer, or still loads its data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from detectors import thresholds as t
from detectors.pending import DOWN_REASONS, alive, is_down, pictures
from detectors.rule import Answer, Rule
from exporters import reasons
from exporters.snapshot import Engine, Evidence, Finding, Process, Shard, Snapshot

NAME = "shard-down"
_STATES: Final = {
    reasons.CONNECTION_REFUSED: "refuses connections: nothing listens there",
    reasons.TIMEOUT: "takes connections and does not answer: it is frozen, or its host is",
    reasons.UNREACHABLE: "cannot be reached",
}


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Down in PICTURES pictures a second apart, so that a restart that is over at once is none.

    A shard that no living process of the engine uses is nobody's trouble.
    """
    users: dict[str, list[Process]] = {}
    unasked = False
    for process in alive(engine):
        unasked = unasked or bool(process.info.get("shard_url") and not process.shard)
        if process.shard:
            users.setdefault(process.shard, []).append(process)
    chosen = pictures(snapshot)
    findings: list[Finding] = []
    untold = None
    again = False
    for url, processes in sorted(users.items()):
        shard = snapshot.shard(url)
        if shard is None or (shard.up and not is_down(shard)):
            continue
        if not shard.up and shard.reason not in DOWN_REASONS:
            untold = shard
        elif sum(_is_down_in(picture, url) for picture in chosen) < t.PICTURES:
            again = True
        else:
            findings.append(_finding(engine, shard, processes, snapshot))
    if untold is not None and not findings:
        return Answer(
            abstained=f"{untold.url} cannot be asked: {untold.reason}", reason=untold.reason
        )
    if unasked and not users:
        return Answer(
            abstained="no --valkey URL names the engine's shard", reason=reasons.NOT_ASKED
        )
    return Answer(tuple(findings), again=again)


def _is_down_in(picture: Snapshot, url: str) -> bool:
    shard = picture.shard(url)
    return shard is not None and is_down(shard)


def _finding(
    engine: Engine, shard: Shard, processes: Sequence[Process], snapshot: Snapshot
) -> Finding:
    ranks = sorted(p.rank for p in processes if p.rank is not None)
    who = (
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else "no rank"
    )
    state = _STATES.get(shard.reason, "is still loading its data set and answers no command")
    began = snapshot.now_seconds
    for picture in reversed(snapshot.earlier):
        if not _is_down_in(picture, shard.url):
            break
        began = picture.now_seconds
    since = snapshot.now_seconds - began
    waiting = [p for process in processes for p in process.pending if p.kind != "set"]
    evidence = [
        Evidence(
            "down_seconds",
            since,
            (t.PICTURES - 1) * t.PICTURE_SPACING_SECONDS,
            "seconds",
            f"down in every picture for {since:.1f} s ({shard.reason or 'loading'})",
        )
    ]
    if waiting:
        oldest = max(p.age_seconds for p in waiting)
        evidence.append(
            Evidence(
                "pending_seconds",
                oldest,
                None,
                "seconds",
                f"operations of its ranks that are pending: {len(waiting)}, the oldest for "
                f"{oldest:.1f} s",
            )
        )
    return Finding(
        id=NAME,
        severity="critical",
        summary=f"shard {shard.url} {state}; {who} use{'s' if len(ranks) == 1 else ''} it",
        shard=shard.url,
        engine_id=engine.engine_id,
        since_seconds=since,
        evidence=tuple(evidence),
        confidence=0.95,
        cause=shard.reason or "loading",
    )


RULE = Rule(NAME, ("valkey", "pages"), judge)
