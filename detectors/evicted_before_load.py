"""evicted-before-load: a shard evicts keys between the EXISTS that found them and their GET."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detectors import thresholds as t
from detectors.load_mismatch import excess_chunks
from detectors.pending import alive, place_of
from detectors.rule import Answer, Rule
from detectors.wedged_connection import Wedge, wedges
from exporters.snapshot import Engine, Evidence, Finding, Process, Shard, Snapshot

NAME = "evicted-before-load"


@dataclass(frozen=True, slots=True)
class Evicting:
    """What INFO says of one shard's eviction."""

    total: int
    recent: int
    over_seconds: float
    full_share: float
    uptime_seconds: int

    @property
    def is_cause(self) -> bool:
        """It evicts now, or has done so and stands at its limit."""
        return self.recent > 0 or (self.total > 0 and self.full_share >= t.MEMORY_FULL_SHARE)


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """The cause of a missing key: evicted_keys rising, or above 0 with maxmemory reached.

    On the stock client its symptom is wedged-connection; on one that takes a null reply for a miss
    it is failed keys of GETs, and the load ends early.
    """
    found, _ = wedges(engine, snapshot)
    wedged = {w.process.page: w for w in found if w.absent}
    findings = []
    for process in alive(engine):
        shard = snapshot.shard(process.shard)
        if shard is None or not shard.up:
            continue
        evicting = _evicting(shard, snapshot.earlier, snapshot.now_seconds)
        wedge = wedged.get(process.page)
        if wedge is not None:
            # A server younger than the GET lost its keys by starting, not by evicting.
            if evicting.is_cause and evicting.uptime_seconds >= wedge.entry.age_seconds:
                findings.append(_of_wedge(engine, wedge, evicting))
        elif evicting.recent > 0:
            missed, answered = _missed_keys(process, snapshot)
            if missed and excess_chunks(process, snapshot) <= 0:
                findings.append(_of_misses(engine, process, missed, answered, evicting))
    return Answer(tuple(findings))


def _evicting(shard: Shard, earlier: Sequence[Snapshot], now_seconds: float) -> Evicting:
    before = next(
        (
            (then, picture.now_seconds)
            for picture in earlier
            for then in (picture.shard(shard.url),)
            if then is not None and then.up and then.info.get("run_id") == shard.info.get("run_id")
        ),
        (shard, now_seconds),
    )
    total, limit = shard.number("evicted_keys"), shard.number("maxmemory")
    return Evicting(
        total=total,
        recent=total - before[0].number("evicted_keys"),
        over_seconds=now_seconds - before[1],
        full_share=shard.number("used_memory") / limit if limit else 0.0,
        uptime_seconds=shard.number("uptime_in_seconds"),
    )


def _missed_keys(process: Process, snapshot: Snapshot) -> tuple[int, int]:
    """(failed, answered) keys of this process's GETs since the oldest picture."""
    first = next((p for s in snapshot.earlier if (p := s.process(process)) is not None), process)
    names = ("client_get_failed_keys", "client_get_answered_keys")
    failed, answered = (process.counters.get(n, 0) - first.counters.get(n, 0) for n in names)
    return failed, answered


def _evidence(evicting: Evicting) -> Evidence:
    text = f"INFO of the shard: {evicting.total} keys evicted"
    if evicting.over_seconds:
        text += f", {evicting.recent} of them in the last {evicting.over_seconds:.0f} s"
    text += f"; memory at {evicting.full_share:.0%} of maxmemory"
    return Evidence("evicted_keys", evicting.total, 0.0, "", text)


def _of_wedge(engine: Engine, wedge: Wedge, evicting: Evicting) -> Finding:
    process, entry = wedge.process, wedge.entry
    return Finding(
        id=NAME,
        severity="critical",
        summary=f"shard {process.shard} evicts keys between lookup and load: {place_of(process)} "
        f"asked for {len(wedge.absent)} that its lookup had found",
        rank=process.rank,
        shard=process.shard,
        engine_id=engine.engine_id,
        since_seconds=entry.age_seconds,
        evidence=(
            Evidence(
                "absent_keys",
                len(wedge.absent),
                0.0,
                "",
                f"a GET is pending for {entry.age_seconds:.1f} s on keys that are absent, such as "
                f"{wedge.absent[0]}",
            ),
            _evidence(evicting),
        ),
        # Keys can also go by DEL or by their own expiry; that they go while others are evicted
        # for memory is the likelier story, not the only one.
        confidence=0.9 if evicting.recent > 0 else 0.75,
        cause="eviction",
    )


def _of_misses(
    engine: Engine, process: Process, missed: int, answered: int, evicting: Evicting
) -> Finding:
    return Finding(
        id=NAME,
        severity="warning",
        summary=f"shard {process.shard} evicts keys between lookup and load: {missed} of "
        f"{answered} keys that {place_of(process)} asked for were gone",
        rank=process.rank,
        shard=process.shard,
        engine_id=engine.engine_id,
        since_seconds=evicting.over_seconds,
        evidence=(
            Evidence(
                "missed_keys",
                missed,
                0.0,
                "",
                f"{missed} of {answered} keys of its GETs brought nothing in the last "
                f"{evicting.over_seconds:.0f} s",
            ),
            _evidence(evicting),
        ),
        confidence=0.7,
        cause="eviction",
    )


RULE = Rule(NAME, ("pages", "valkey"), judge)
