"""Pictures of a rank with operations under way and of its shard, a second apart, made by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from exporters.snapshot import Engine, Group, Pending, Process, Shard, ShardClient, Snapshot
from tests.detectors.pictures import NOW, engine, worker

SHARD = "redis://v-1:6379"
CONNECTIONS = ("10.0.0.1:5001", "10.0.0.1:5002")
LOOKUP_SECONDS = 3.0
BLOCKING_SECONDS = 10.0
INFO: dict[str, object] = {
    "shard_url": "resp://v-1:6379",
    "connections": list(CONNECTIONS),
    "timeouts": {"lookup_seconds": LOOKUP_SECONDS, "blocking_seconds": BLOCKING_SECONDS},
}


def entry(kind: str, age: float, number: int = 7, **changes: object) -> Pending:
    """One pending operation, `age` seconds old in the newest picture."""
    timeout = BLOCKING_SECONDS if kind in ("get", "set") else LOOKUP_SECONDS
    made = Pending(number, kind, age, timeout, 8, f"key{number}")
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def rank(
    number: int = 1, size: int = 2, pending: Sequence[Pending] = (), **changes: object
) -> Process:
    return worker(
        number,
        size,
        **{"info": INFO, "shard": SHARD, "pending": tuple(pending), **changes},
    )


def client(address: str = CONNECTIONS[0], **changes: object) -> ShardClient:
    made = ShardClient(3, address, 1, 0, 0, 0, 0, 100, "exists")
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def clear(**changes: object) -> tuple[ShardClient, ...]:
    return tuple(client(address, **changes) for address in CONNECTIONS)


def shard(**changes: object) -> Shard:
    made = Shard(SHARD, True, info={"run_id": "a", "uptime_in_seconds": 9000}, clients=clear())
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


At = Callable[[int], object]  # of a picture's number, 0 the newest


def series(
    process: Process | Callable[[int], Process],
    server: Shard | Callable[[int], Shard] | None = None,
    *,
    count: int = 3,
    apart: float = 1.0,
    others: Sequence[Process] = (),
    groups: tuple[Group, ...] = (),
) -> Snapshot:
    """`count` pictures; operations of the newest are younger in the earlier ones, and not there
    before they began."""

    def picture(ago: int) -> Snapshot:
        of = process(ago) if callable(process) else process
        back = ago * apart
        pending = tuple(
            dataclasses.replace(p, age_seconds=p.age_seconds - back)
            for p in of.pending
            if p.age_seconds >= back
        )
        made: Engine = engine(
            of.world_size, groups, None, (dataclasses.replace(of, pending=pending), *others)
        )
        there = server(ago) if callable(server) else server
        return Snapshot(
            now_seconds=NOW - back,
            unix_seconds=1.7e9 - back,
            engines=(made,),
            shards=(there,) if there is not None else (),
        )

    earlier = tuple(picture(ago) for ago in range(count - 1, 0, -1))
    return dataclasses.replace(picture(0), earlier=earlier)
