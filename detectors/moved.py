"""What the rules on counters share: how far one moved between the oldest picture and this one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from detectors import thresholds as t
from exporters.snapshot import Engine, Process, Snapshot


@dataclass(frozen=True, slots=True)
class Moved:
    """Two pictures of one process: its counters then and now, `seconds` apart."""

    seconds: float
    before: Process
    after: Process

    def by(self, *names: str) -> int:
        """How far these counters moved, together."""
        return sum(self.after.counters.get(n, 0) - self.before.counters.get(n, 0) for n in names)

    def share(self, nanoseconds: str) -> float:
        """The share of the time that a counter of nanoseconds stands for."""
        return self.by(nanoseconds) / 1e9 / self.seconds


def moved(process: Process, snapshot: Snapshot) -> Moved | None:
    """Against the oldest picture that has this process; None where that is too close."""
    for picture in snapshot.earlier:
        before = picture.process(process)
        if before is not None:
            seconds = snapshot.now_seconds - picture.now_seconds
            return Moved(seconds, before, process) if seconds >= t.MOVED_SECONDS else None
    return None


def alive_with(engine: Engine, role: str) -> list[Process]:
    """The engine's living processes of that role."""
    return [p for p in engine.processes if role in p.roles and p.liveness == "alive"]


def lines_logged(engine: Engine, snapshot: Snapshot, kinds: Iterable[str]) -> dict[str, int]:
    """How often the engine's processes logged each kind of line, as their pages count them (those
    of the dead too: what killed an engine is on its page), or the logs that were given; kinds that
    were not logged are left out.

    Of several engines, a log's lines are those of the process that has their pid (its counters have
    them), or of the engine that stands for that log."""
    wanted = tuple(kinds)
    found: dict[str, int] = {}
    for kind in wanted:
        of_pages = sum(p.counters.get(f"log_{kind}", 0) for p in engine.processes)
        of_files = sum(
            count.count
            for count in snapshot.logs
            if count.kind == kind
            and (len(snapshot.engines) == 1 or count.source == engine.engine_id)
        )
        if most := max(of_pages, of_files):
            found[kind] = most
    return found
