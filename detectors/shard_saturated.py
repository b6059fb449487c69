"""shard-saturated: the one thread of a shard that runs every command has no time left."""

from __future__ import annotations

from detectors import thresholds as t
from detectors.pending import alive, is_down
from detectors.rule import Answer, Rule
from exporters import reasons
from exporters.saturation import Saturation, between, recent
from exporters.snapshot import Engine, Evidence, Finding, Shard, Snapshot

NAME = "shard-saturated"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """The lower bound of a used shard's main thread at 0.85 over 8 s, or at 0.97 over a look of 2
    s. An upper bound alone decides nothing, and that is said."""
    living = alive(engine)
    urls = sorted({p.shard for p in living if p.shard})
    findings = []
    untold = unmeasured = ""
    again = False
    for url in urls:
        shard = snapshot.shard(url)
        if shard is None or is_down(shard):
            continue
        if not shard.up:
            unmeasured = unmeasured or f"{url} cannot be asked: {shard.reason}"
            continue
        found = recent(snapshot, shard)
        if found is None or found.wall_seconds < t.MOVED_SECONDS:
            again = True
            unmeasured = unmeasured or _why_unmeasured(snapshot, shard)
            continue
        brief = _brief(snapshot, shard)
        over = next((s for s in (found, brief) if s is not None and s.lower >= _limit(s)), None)
        if over is not None:
            findings.append(_finding(engine, url, over, snapshot))
        elif found.upper >= t.SATURATED_CANNOT_TELL:
            untold = (
                f"{url}'s main thread is busy from {found.lower:.0%} to {found.upper:.0%} of the "
                f"time ({found.basis})"
            )
    if untold and not findings:
        return Answer(abstained=untold, reason=reasons.CANNOT_TELL, again=again)
    if findings:
        return Answer(tuple(findings), again=again)
    if unmeasured:
        return Answer(abstained=unmeasured, reason=reasons.TOO_FEW, again=again)
    if not urls:
        if not any(p.info.get("shard_url") for p in living):
            return Answer()  # no remote tier: nothing that could be saturated
        return Answer(abstained="none of the engine's shards is asked", reason=reasons.NOT_ASKED)
    return Answer()


def _why_unmeasured(snapshot: Snapshot, shard: Shard) -> str:
    """Of two answers in one life, far enough apart, only the figures can be missing."""
    for picture in snapshot.earlier:
        before = picture.shard(shard.url)
        if (
            before is not None
            and before.up
            and before.info.get("run_id") == shard.info.get("run_id")
            and shard.read_seconds - before.read_seconds >= t.MOVED_SECONDS
        ):
            return (
                f"{shard.url} does not tell how busy its main thread is, or its counters were "
                "reset just now"
            )
    return f"{shard.url} was seen for less than {t.MOVED_SECONDS:g} s of its life"


def _brief(snapshot: Snapshot, shard: Shard) -> Saturation | None:
    """Over the shortest time that is long enough: what began just now."""
    for picture in reversed(snapshot.earlier):
        before = picture.shard(shard.url)
        if before is not None and shard.read_seconds - before.read_seconds >= t.MOVED_SECONDS:
            return between(before, shard)
    return None


def _limit(found: Saturation) -> float:
    is_long = found.wall_seconds >= t.SATURATED_WINDOW_SECONDS
    return t.SATURATED_SHARE if is_long else t.SATURATED_BRIEF_SHARE


def _finding(engine: Engine, url: str, found: Saturation, snapshot: Snapshot) -> Finding:
    ranks = sorted(p.rank for p in alive(engine) if p.shard == url and p.rank is not None)
    who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else "nobody"
    told = "" if found.command_share is None else f"; commands alone: {found.command_share:.0%}"
    return Finding(
        id=NAME,
        severity="critical" if found.lower >= t.SATURATED_CANNOT_TELL else "warning",
        summary=f"shard {url} is saturated: its main thread is busy for {found.lower:.0%} of the "
        f"time; {who} wait{'s' if len(ranks) == 1 else ''} for it",
        shard=url,
        engine_id=engine.engine_id,
        since_seconds=found.wall_seconds,
        evidence=(
            Evidence(
                "main_thread_share",
                found.lower,
                _limit(found),
                "ratio",
                f"busy for {found.lower:.0%} to {found.upper:.0%} of {found.wall_seconds:.1f} s "
                f"({found.basis}; limit {_limit(found):.0%}){told}",
            ),
        ),
        confidence=0.95,
    )


RULE = Rule(NAME, ("valkey",), judge)
