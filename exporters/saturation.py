"""How busy a shard's main thread is: the one that runs every command, whatever io-threads does.

No single figure says so on every version, so it is an interval with a basis (design, Definitions):
what a server cannot tell makes the interval wider, never wrong. Pure functions of what INFO said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from exporters import catalog
from exporters.snapshot import Shard, Snapshot

SaturationBasis = Literal[
    "active_time",
    "active_time_to_eventloop",
    "eventloop",
    "main_thread_cpu",
    "commandstats_to_eventloop",
]

# INFO shows a turn of the event loop when it is over, and one with large values takes tens of ms:
# over this time that is a point or less.
WINDOW_SECONDS: Final = 10.0
# Between two samples closer than this, turns under way at either end weigh too much.
SHORTEST_SECONDS: Final = 0.5
# How far the server's wall clock may differ from ours between two samples before it was set anew.
CLOCK_SLACK_SECONDS: Final = 1.0
# IO threads at work make the main thread poll and never sleep: millions of turns a second were
# measured, against 500 of one that sleeps between values and some thousands of an idle one.
SPINNING_TURNS_PER_SECOND: Final = 20_000.0

# Their time holds that of the commands inside them, which are counted too.
_WRAPPERS: Final = frozenset(
    ("exec", "eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro")
)
_MICROSECONDS: Final = 1e6


@dataclass(frozen=True, slots=True)
class Saturation:
    """Share of `wall_seconds` that the main thread was busy, in [0, 1]: at least `lower`, at most
    `upper`. `command_share` is time in commands over wall, which is what the figure is often taken
    from; it lacks all that a server does outside of them. None where INFO has no commandstats."""

    lower: float
    upper: float
    basis: SaturationBasis
    command_share: float | None
    wall_seconds: float


def recent(snapshot: Snapshot, shard: Shard) -> Saturation | None:
    """Over the longest time within WINDOW_SECONDS that one life of this server allows; None where
    nothing can be said (yet)."""
    for picture in snapshot.earlier:
        before = picture.shard(shard.url)
        if before is not None and shard.read_seconds - before.read_seconds <= WINDOW_SECONDS:
            found = between(before, shard)
            if found is not None:
                return found
    return None


def between(before: Shard, after: Shard) -> Saturation | None:
    """From two answers of one server; None if either did not come, they are too close, the server
    was restarted or its counters reset between them, or INFO has none of the figures."""
    if not (before.up and after.up) or before.info.get("run_id") != after.info.get("run_id"):
        return None
    wall = _wall_seconds(before, after)
    if wall < SHORTEST_SECONDS:
        return None

    def share(name: str, per_second: float = 1.0) -> float | None:
        first, last = number(before.info, name), number(after.info, name)
        return None if first is None or last is None else (last - first) / per_second / wall

    active = share("used_active_time_main_thread")
    loop = share("eventloop_duration_sum", _MICROSECONDS)
    turns = share("eventloop_cycles")
    user, system = share("used_cpu_user_main_thread"), share("used_cpu_sys_main_thread")
    first, last = command_seconds(before.info), command_seconds(after.info)
    commands = None if first is None or last is None else (last - first) / wall
    if any(
        figure is not None and figure < 0
        for figure in (active, loop, turns, user, system, commands)
    ):
        return None  # counted from 0 again

    def made(lower: float, upper: float, basis: SaturationBasis) -> Saturation:
        top = min(1.0, upper)
        told = None if commands is None else min(1.0, commands)
        return Saturation(min(lower, top), top, basis, told, wall)

    has_io_threads = not before.io_threads == after.io_threads == 1
    if has_io_threads and loop is not None and (turns or 0.0) > SPINNING_TURNS_PER_SECOND:
        loop = 1.0  # nothing tells which of the time between its turns it was to sleep
    if active is not None:
        if not has_io_threads or loop is None:
            return made(active, active, "active_time")
        # With IO threads it counts no turn in which the thread polled while its CPU was another's:
        # measured .61 where run and run queue came to .99.
        return made(active, max(active, loop), "active_time_to_eventloop")
    if loop is None:
        if user is None or system is None:
            return None
        return made(user + system, user + system, "main_thread_cpu")
    if not has_io_threads:
        return made(loop, loop, "eventloop")
    # With IO threads the loop also turns with nothing to do. Not knowing of any is no knowledge
    # that there are none.
    return made(commands or 0.0, loop, "commandstats_to_eventloop")


def command_seconds(info: Mapping[str, object]) -> float | None:
    """Time in commands since the server's start, each counted once; None without commandstats."""
    spent = [value for (_, name), value in command_sums(info).items() if name == "usec"]
    return sum(spent) / _MICROSECONDS if spent else None


def command_sums(info: Mapping[str, object]) -> dict[tuple[str, str], float]:
    """Commandstats by (command, figure), with commands and figures as the catalog has them; a
    figure that this server does not keep is missing. Microseconds."""
    sums: dict[tuple[str, str], float] = {}
    for entry, figures in info.items():
        if not entry.startswith("cmdstat_") or not isinstance(figures, Mapping):
            continue
        name = entry.removeprefix("cmdstat_")
        command = name if name in catalog.SHARD_COMMANDS else catalog.OTHER_COMMANDS
        for figure in catalog.SHARD_COMMAND_FIGURES:
            value = number(figures, figure)
            if value is not None and not (figure == "usec" and name in _WRAPPERS):
                sums[command, figure] = sums.get((command, figure), 0.0) + value
    return sums


def number(info: Mapping[str, object], name: str) -> float | None:
    """A figure of INFO; None where it is not there or no number."""
    value = info.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _wall_seconds(before: Shard, after: Shard) -> float:
    """By the server's own clock, read with the counters: an answer may wait long for its turn."""
    ours = after.read_seconds - before.read_seconds
    first, last = (number(s.info, "server_time_usec") for s in (before, after))
    if first is None or last is None:
        return ours
    theirs = (last - first) / _MICROSECONDS
    return theirs if abs(theirs - ours) <= CLOCK_SLACK_SECONDS else ours
