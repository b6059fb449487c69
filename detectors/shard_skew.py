"""shard-skew: one shard holds more than its share of the chunks, and is asked for more."""

from __future__ import annotations

from detectors import thresholds as t
from detectors.rule import Answer, Rule
from detectors.shard_set import is_sharded, keys, rank_of, shards_of
from exporters import reasons
from exporters.snapshot import Engine, Evidence, Finding, Shard, Snapshot

NAME = "shard-skew"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Against the expected share: chunks owned in turn are spread alike over the shards, whatever
    the prompts. Needs as many chunks as a skew of stores does."""
    if not is_sharded(engine) or engine.world_size < 2:
        return Answer()
    shards = shards_of(engine, snapshot)
    users = len({p.shard for p in engine.workers().values() if p.shard})
    if len(shards) < 2 or len(shards) < users:
        return Answer(abstained="not all of the engine's shards answer", reason=reasons.NOT_ASKED)
    total = sum(map(keys, shards))
    fullest = max(shards, key=keys)
    ranks = {url: 0 for url in (s.url for s in shards)}
    for process in engine.workers().values():
        if process.shard in ranks:
            ranks[process.shard] += 1
    share = ranks[fullest.url] / max(1, sum(ranks.values()))
    expected = share * total
    excess = keys(fullest) - expected
    is_enough = excess >= t.SKEW_CHUNKS_PER_RANK * engine.world_size
    if not is_enough or keys(fullest) <= t.SHARD_SKEW_RATIO * expected:
        return Answer()
    return Answer((_finding(engine, fullest, expected, total),))


def _finding(engine: Engine, shard: Shard, expected: float, total: int) -> Finding:
    count = keys(shard)
    return Finding(
        id=NAME,
        severity="warning",
        summary=f"shard {shard.url} holds {count / total:.0%} of all keys where its share is "
        f"{expected / total:.0%}: what is beyond it is another rank's, or nobody's",
        rank=rank_of(engine, shard.url),
        shard=shard.url,
        engine_id=engine.engine_id,
        evidence=(
            Evidence(
                "key_ratio",
                count / expected,
                t.SHARD_SKEW_RATIO,
                "ratio",
                f"{count} keys, {count / expected:.1f} times its share of {expected:.0f} "
                f"(limit {t.SHARD_SKEW_RATIO:g})",
            ),
        ),
        confidence=0.8,
    )


RULE = Rule(NAME, ("valkey",), judge)
