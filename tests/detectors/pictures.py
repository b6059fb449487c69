"""Snapshots made by hand: an engine of W ranks whose every figure a test can set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from exporters.snapshot import (
    CollectiveSecond,
    Engine,
    Group,
    GroupTotal,
    OpenCollective,
    Operation,
    Process,
    Snapshot,
)

NOW = 1000.5


def second(
    at: int, size: int, late: int, count: int = 20, last: int = 20, lost_seconds: float = 0.2
) -> CollectiveSecond:
    """One second: `late` is last in `last` of `count`, the others in turn in the rest, and each
    of the others waits `lost_seconds` for it."""
    counts = [0] * size
    counts[late] = last
    for i in range(count - last):
        counts[(late + 1 + i % (size - 1)) % size] += 1
    return CollectiveSecond(
        second=at,
        count=count,
        wait_seconds=tuple(0.0 if i == late else lost_seconds for i in range(size)),
        charged_seconds=tuple(lost_seconds * (size - 1) if i == late else 0.0 for i in range(size)),
        last_count=tuple(counts),
    )


def quiet(at: int, size: int, count: int = 20) -> CollectiveSecond:
    """A second in which the ranks are last in turn and nobody waits long."""
    counts = [count // size + (i < count % size) for i in range(size)]
    waits = (0.001,) * size
    return CollectiveSecond(at, count, waits, waits, tuple(counts))


def group(
    seconds: list[CollectiveSecond], size: int, name: str = "world", **changes: object
) -> Group:
    total = GroupTotal(
        "all_gather",
        "host",
        sum(s.count for s in seconds),
        tuple(sum(s.wait_seconds[i] for s in seconds) for i in range(size)),
        tuple(sum(s.charged_seconds[i] for s in seconds) for i in range(size)),
        tuple(sum(s.last_count[i] for s in seconds) for i in range(size)),
    )
    made = Group(name, tuple(range(size)), tuple(seconds), (total,))
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def stores(
    rank: int, count: int, *, begin: float = NOW - 50, chunks: int = 8, expected: int = 2
) -> tuple[Operation, ...]:
    """`count` stores of a rank, half a second apart."""
    return tuple(
        Operation(
            kind="store",
            start_seconds=begin + 0.5 * i + 0.01 * rank,
            end_seconds=begin + 0.5 * i + 0.01 * rank + 0.1,
            tokens=chunks * 256,
            chunks=chunks,
            bytes=chunks * 1_000_000,
            expected_chunks=expected,
        )
        for i in range(count)
    )


def worker(rank: int, world_size: int, **changes: object) -> Process:
    made = Process(
        page=f"{rank}.page",
        pid=100 + rank,
        engine_id="e",
        roles=("worker",),
        rank=rank,
        world_size=world_size,
        incarnation=rank + 1,
        liveness="alive",
        heartbeat_age_seconds=0.4,
        started_seconds=NOW - 500,
        counters={},
        marks={},
        info={},
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def engine(
    size: int,
    groups: tuple[Group, ...] = (),
    operations: Mapping[int, tuple[Operation, ...]] | None = None,
    processes: tuple[Process, ...] | None = None,
) -> Engine:
    given = operations or {}
    made = tuple(worker(r, size, operations=given.get(r, ())) for r in range(size))
    return Engine("e", size, made if processes is None else processes, groups)


def snapshot(*engines: Engine, now: float = NOW) -> Snapshot:
    return Snapshot(now_seconds=now, unix_seconds=1.7e9, engines=engines)


def opened(seconds: float, present: tuple[int, ...], missing: tuple[int, ...]) -> OpenCollective:
    return OpenCollective("all_gather", 7, seconds, present, missing)


def group_with_open(size: int, open_now: tuple[OpenCollective, ...]) -> Group:
    """A quiet group with these collectives open."""
    end = int(NOW)
    return group([quiet(at, size) for at in range(end - 60, end)], size, open=open_now)
