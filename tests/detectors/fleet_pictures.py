"""Pictures of an engine whose ranks have a shard each, then and now, made by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from exporters.snapshot import Engine, Group, Process, Shard, Snapshot
from tests.detectors.pictures import NOW, engine, worker

SIZE = 4
CHUNK = 256
Facts = dict[str, object]


def url(rank: int) -> str:
    return f"redis://v-{rank}:6379"


def facts(**changes: object) -> Facts:
    return {
        "shard_url": "resp://v-{rank}:6379",
        "chunk_tokens": CHUNK,
        "model": "m",
        "world_size": SIZE,
        "key_fingerprint": "aa",
        "timeouts": {"lookup_seconds": 3.0, "blocking_seconds": 10.0},
        **changes,
    }


def ranks(size: int = SIZE, info: Facts | None = None, **changes: object) -> tuple[Process, ...]:
    known = facts() if info is None else info
    return tuple(
        worker(r, size, **{"info": known, "shard": url(r), "counters": {}, **changes})
        for r in range(size)
    )


def scheduler(**changes: object) -> Process:
    return dataclasses.replace(
        worker(0, SIZE), page="s.page", roles=("scheduler",), rank=None, **changes
    )


def shard(rank: int, keys: int = 1000, uptime: int = 90_000, **info: object) -> Shard:
    figures = {"run_id": f"r{rank}", "uptime_in_seconds": uptime, "db0": {"keys": keys}, **info}
    return Shard(url(rank), True, info=figures, io_threads=1, read_seconds=NOW)


def picture(
    processes: tuple[Process, ...],
    shards: tuple[Shard, ...] = (),
    groups: tuple[Group, ...] = (),
    more: tuple[Engine, ...] = (),
    size: int = SIZE,
) -> Snapshot:
    made = engine(size, groups, None, processes)
    return Snapshot(NOW, 1.7e9, engines=(made, *more), shards=shards)


def since(now: Snapshot, seconds: float, before: Callable[[Process], Process]) -> Snapshot:
    """`now` with an earlier picture, in which each process was as `before` makes it."""
    engines = tuple(
        dataclasses.replace(e, processes=tuple(map(before, e.processes))) for e in now.engines
    )
    shards = tuple(
        dataclasses.replace(s, read_seconds=s.read_seconds - seconds) for s in now.shards
    )
    earlier = dataclasses.replace(
        now, now_seconds=now.now_seconds - seconds, engines=engines, shards=shards
    )
    return dataclasses.replace(now, earlier=(earlier,))


def less(**amounts: int) -> Callable[[Process], Process]:
    """A process whose counters stood so much lower."""

    def before(process: Process) -> Process:
        counters: Mapping[str, int] = {
            **process.counters,
            **{n: process.counters.get(n, 0) - a for n, a in amounts.items()},
        }
        return dataclasses.replace(process, counters=counters)

    return before
