"""What a run looked like at each tick, for the report: waits, bytes, shards and findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


def place(rank: int | None, shard: str | None) -> str:
    """Where a finding is, in two words."""
    if rank is not None:
        return f"rank {rank}"
    return shard or "scheduler"


@dataclass(frozen=True, slots=True)
class RankMoment:
    """One rank so far: seconds waited and charged in collectives, bytes moved by tier."""

    wait_seconds: float
    charged_seconds: float
    store_bytes: int
    l1_bytes: int
    l2_bytes: int


@dataclass(frozen=True, slots=True)
class ShardMoment:
    """One shard so far: whether it answered, and how long its main thread was busy (None where it
    does not say)."""

    is_up: bool
    busy_seconds: float | None


@dataclass(frozen=True, slots=True)
class Moment:
    """One tick, `at_seconds` after the run's start; `findings` as (name, place, severity)."""

    at_seconds: float
    ranks: tuple[RankMoment, ...]
    shards: tuple[ShardMoment, ...]
    findings: tuple[tuple[str, str, str], ...]


def moment(evaluation: Any, at_seconds: float, ranks: int, shard_urls: list[str]) -> Moment:
    """Take from one evaluation what the report draws."""
    snapshot = evaluation.snapshot
    return Moment(
        at_seconds,
        tuple(_rank(snapshot, rank) for rank in range(ranks)),
        tuple(_shard(snapshot.shard(url)) for url in shard_urls),
        tuple((f.id, place(f.rank, f.shard), f.severity) for f in evaluation.findings),
    )


def _rank(snapshot: Any, rank: int) -> RankMoment:
    wait = charged = 0.0
    counters: dict[str, int] = {}
    for engine in snapshot.engines:
        worker = engine.workers().get(rank)
        counters = dict(worker.counters) if worker is not None else counters
        for group in engine.groups:
            if rank in group.ranks:
                index = group.ranks.index(rank)
                wait += sum(total.wait_seconds[index] for total in group.totals)
                charged += sum(total.charged_seconds[index] for total in group.totals)
    return RankMoment(
        wait,
        charged,
        counters.get("store_bytes", 0),
        counters.get("load_l1_bytes", 0),
        counters.get("load_l2_bytes", 0),
    )


def _shard(shard: Any) -> ShardMoment:
    """Valkey from 9.1 on says how long its main thread was active, without what it only polled."""
    if shard is None or not shard.up:
        return ShardMoment(False, None)
    busy = shard.info.get("used_active_time_main_thread")
    return ShardMoment(True, float(busy) if isinstance(busy, int | float | str) else None)
