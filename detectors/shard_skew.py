"""shard-skew: one shard holds more than its share of the chunks, and is asked for more."""

from __future__ import annotations

from collections.abc import Sequence

from detectors import thresholds as t
from detectors.rule import Answer, Rule
from detectors.shard_set import is_sharded, is_younger, keys, rank_of, shards_of
from exporters import reasons
from exporters.snapshot import Engine, Evidence, Finding, Shard, Snapshot

NAME = "shard-skew"


def judge(engine: Engine, snapshot: Snapshot) -> Answer:
    """Against the expected share: chunks owned in turn are spread alike over the shards, whatever
    the prompts. Needs as many chunks as a skew of stores does.

    Shards that began anew lack theirs, which makes nobody's share larger; and of two shards alone
    either may be the one that is off.
    """
    if not is_sharded(engine) or engine.world_size < 2:
        return Answer()
    shards = shards_of(engine, snapshot)
    users = len({p.shard for p in engine.workers().values() if p.shard})
    if len(shards) < 2 or len(shards) < users:
        return Answer(abstained="not all of the engine's shards answer", reason=reasons.NOT_ASKED)
    fullest = max(shards, key=keys)
    if not _is_over(engine, fullest, shards):
        return Answer()
    others = [s for s in shards if s is not fullest and not is_younger(s, fullest)]
    if not others or not _is_over(engine, fullest, [fullest, *others]):
        return Answer()
    foreign = _foreign_keys(fullest)
    excess = keys(fullest) - _expected(engine, fullest, [fullest, *others])
    if len(others) == 1 and foreign < excess / 2:
        return Answer(
            abstained=f"{fullest.url} holds {keys(fullest)} keys and {others[0].url} "
            f"{keys(others[0])}: of two, either may hold too much or lack some",
            reason=reasons.CANNOT_TELL,
        )
    return Answer((_finding(engine, fullest, [fullest, *others], foreign),))


def _expected(engine: Engine, shard: Shard, among: Sequence[Shard]) -> float:
    """The part of all their keys that the ranks of this shard own."""
    ranks = {s.url: 0 for s in among}
    for process in engine.workers().values():
        if process.shard in ranks:
            ranks[process.shard] += 1
    return ranks[shard.url] / max(1, sum(ranks.values())) * sum(map(keys, among))


def _is_over(engine: Engine, shard: Shard, among: Sequence[Shard]) -> bool:
    expected = _expected(engine, shard, among)
    is_enough = keys(shard) - expected >= t.SKEW_CHUNKS_PER_RANK * engine.world_size
    return is_enough and keys(shard) > t.SHARD_SKEW_RATIO * expected


def _foreign_keys(shard: Shard) -> int:
    """Keys that are no chunks, as far as a scan has seen them; 0 without one."""
    return shard.key_sample.keys.get("other", 0) if shard.key_sample is not None else 0


def _finding(engine: Engine, shard: Shard, among: Sequence[Shard], foreign: int) -> Finding:
    count, total = keys(shard), sum(map(keys, among))
    expected = _expected(engine, shard, among)
    is_foreign = foreign >= (count - expected) / 2
    whose = f"{foreign} of them are no chunks" if is_foreign else "another pod's or rank's chunks"
    return Finding(
        id=NAME,
        severity="warning",
        summary=f"shard {shard.url} holds {count / total:.0%} of all keys where its share is "
        f"{expected / total:.0%}: what is beyond it is not its rank's ({whose})",
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
        confidence=0.9 if is_foreign else 0.8,
        cause="foreign-keys" if is_foreign else "",
    )


RULE = Rule(NAME, ("valkey",), judge)
