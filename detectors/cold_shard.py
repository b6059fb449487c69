"""cold-shard: one shard began anew, and has not yet the chunks that the others have."""

from __future__ import annotations

from statistics import median

from detectors import thresholds as t
from detectors.rule import Answer, Rule
from detectors.shard_set import is_sharded, keys, rank_of, shards_of, uptime_seconds
from exporters import reasons
from exporters.snapshot import Engine, Evidence, Finding, Shard, Snapshot

NAME = "cold-shard"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Up for less than an hour, begun after the others, and with less than half of their keys.
    Where all began together nothing is cold: the deployment is new."""
    if not is_sharded(engine):
        return Answer()  # one shard holds all, or the ranks' shares differ by design
    if engine.world_size < 2:
        return Answer()
    up = {s.url: uptime_seconds(s) for s in shards_of(engine, snapshot)}
    uptimes = {url: seconds for url, seconds in up.items() if seconds is not None}
    shards = [s for s in shards_of(engine, snapshot) if s.url in uptimes]
    if len(shards) < 2:
        return Answer(
            abstained="fewer than two of the engine's shards say how long they are up",
            reason=reasons.NOT_ASKED,
        )
    cold = []
    for shard in shards:
        others = [s for s in shards if s is not shard]
        usual_keys = median(map(keys, others))
        usual_uptime = median(uptimes[s.url] for s in others)
        uptime = uptimes[shard.url]
        if (
            usual_keys >= t.COLD_LEAST_KEYS
            and keys(shard) < t.COLD_KEYS_SHARE * usual_keys
            and uptime < min(t.COLD_UPTIME_SECONDS, usual_uptime - t.COLD_YOUNGER_SECONDS)
        ):
            cold.append(_finding(engine, shard, uptime, usual_keys))
    if not cold and len(shards) < len({p.shard for p in engine.workers().values()}):
        return Answer(abstained="not all of the engine's shards answer", reason=reasons.NOT_ASKED)
    return Answer(tuple(cold))


def _finding(engine: Engine, shard: Shard, uptime: float, usual_keys: float) -> Finding:
    count = keys(shard)
    rank = rank_of(engine, shard.url)
    return Finding(
        id=NAME,
        severity="warning",
        summary=f"shard {shard.url} is cold: it began {_ago(uptime)} ago and holds {count} keys "
        f"where the others hold {usual_keys:.0f}; no prompt's prefix is longer than what it has",
        rank=rank,
        shard=shard.url,
        engine_id=engine.engine_id,
        since_seconds=uptime,
        evidence=(
            Evidence(
                "key_share",
                1 - count / usual_keys,
                1 - t.COLD_KEYS_SHARE,
                "ratio",
                f"{count} keys, {count / usual_keys:.0%} of the others' median {usual_keys:.0f}",
            ),
            Evidence("uptime_seconds", uptime, None, "seconds", f"up for {_ago(uptime)}"),
        ),
        confidence=0.95,
        cause="restart",
    )


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


RULE = Rule(NAME, ("valkey",), judge)
