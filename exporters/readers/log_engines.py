"""What logs say as counters of processes, so that one rule judges a page and a log alike."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Final

from exporters.snapshot import Engine, LogCount, Process, Snapshot

# Under these names a page carries the counts of the handler inside the engine.
COUNTER_PREFIX: Final = "log_"
_RANK: Final = re.compile(r"^Worker\w*?_(?:PP|PCP|TP)(\d+)")


def with_logs(snapshot: Snapshot, counts: Sequence[LogCount]) -> Snapshot:
    """The picture with these counts: each process that a log names by its pid has them among its
    counters (the larger of the two, for its page may have counted the same lines). Without any
    engine in the picture, the processes that the logs name make up one a log."""
    if not counts:
        return snapshot
    engines = (
        tuple(_joined(engine, counts) for engine in snapshot.engines)
        if snapshot.engines
        else tuple(_engines(counts))
    )
    return dataclasses.replace(snapshot, engines=engines, logs=tuple(counts))


def _joined(engine: Engine, counts: Sequence[LogCount]) -> Engine:
    processes = []
    for process in engine.processes:
        of_it = [count for count in counts if count.pid == process.pid]
        # The same number in the logs of several pods: which of them is this one cannot be told.
        is_one = len({count.source for count in of_it}) == 1
        processes.append(_with_counters(process, of_it) if is_one else process)
    return dataclasses.replace(engine, processes=tuple(processes))


def _with_counters(process: Process, counts: Iterable[LogCount]) -> Process:
    counters = dict(process.counters)
    for count in counts:
        name = COUNTER_PREFIX + count.kind
        counters[name] = max(counters.get(name, 0), count.count)
    return dataclasses.replace(process, counters=counters)


def _engines(counts: Sequence[LogCount]) -> Iterable[Engine]:
    for source in dict.fromkeys(count.source for count in counts):
        of_it = [count for count in counts if count.source == source]
        names = dict.fromkeys((count.process, count.pid) for count in of_it)
        processes = tuple(
            _with_counters(
                _process(source, name, pid),
                [count for count in of_it if (count.process, count.pid) == (name, pid)],
            )
            for name, pid in names
        )
        yield Engine(source, 0, processes)


def _process(source: str, name: str, pid: int | None) -> Process:
    """A process of which only its log is known: it is taken to run. `page` tells it from others."""
    rank = _RANK.match(name)
    roles = ("worker",) if name.startswith("Worker") else ("scheduler",)
    return Process(
        page=f"log of {name or 'unnamed'} {pid or ''}".strip(),
        pid=pid or 0,
        engine_id=source,
        roles=roles if name else (),
        rank=int(rank[1]) if rank is not None else None,
        world_size=0,
        incarnation=0,
        liveness="alive",
        heartbeat_age_seconds=0.0,
        started_seconds=0.0,
        counters={},
        marks={},
        info={"source": "log"},
    )
