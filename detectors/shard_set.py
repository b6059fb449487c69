"""What the rules on a set of shards share: the shards that one engine's ranks spread over."""

from __future__ import annotations

from detectors import thresholds as t
from exporters.saturation import number
from exporters.snapshot import Engine, Shard, Snapshot


def is_sharded(engine: Engine) -> bool:
    """Whether each rank has a shard of its own: its URL has the rank in it."""
    templates = [p.info.get("shard_url") for p in engine.workers().values()]
    return bool(templates) and all(isinstance(u, str) and "{rank}" in u for u in templates)


def shards_of(engine: Engine, snapshot: Snapshot) -> list[Shard]:
    """The shards that its ranks use and that answered, each once, in the order of the ranks."""
    urls = dict.fromkeys(p.shard for _, p in sorted(engine.workers().items()) if p.shard)
    found = (snapshot.shard(url) for url in urls)
    return [shard for shard in found if shard is not None and shard.up]


def keys(shard: Shard) -> int:
    """Keys in all its databases."""
    total = 0
    for name, figures in shard.info.items():
        if name.startswith("db") and name[2:].isdigit() and isinstance(figures, dict):
            count = figures.get("keys")
            total += count if isinstance(count, int) else 0
    return total


def is_younger(shard: Shard, other: Shard) -> bool:
    """Whether it began within the hour, and after the other one."""
    uptime, usual = uptime_seconds(shard), uptime_seconds(other)
    if uptime is None or usual is None:
        return False
    return uptime < min(t.COLD_UPTIME_SECONDS, usual - t.COLD_YOUNGER_SECONDS)


def uptime_seconds(shard: Shard) -> float | None:
    """Since its start; None where it does not say, or what cannot be."""
    said = number(shard.info, "uptime_in_seconds")
    is_time = (
        said is not None and said >= 0 and not isinstance(shard.info["uptime_in_seconds"], bool)
    )
    return said if is_time else None


def rank_of(engine: Engine, url: str) -> int | None:
    """The rank that alone uses this shard."""
    ranks = [rank for rank, process in engine.workers().items() if process.shard == url]
    return ranks[0] if len(ranks) == 1 else None
