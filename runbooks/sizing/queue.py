"""A discrete-event model of hits that queue: loads inside the engine's step, or beside it.

What it assumes: prompts of one length; arrivals at random (a Poisson stream, given its count and
length); the engine serves one prompt at a time, in order; each shard serves one load at a time, in
order; a load takes longer the more requests wait for theirs, by `slowdown_per_load` each.
"""

from __future__ import annotations

import math
import random
import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["in-step", "background"]
MODES: Final[tuple[Mode, ...]] = ("in-step", "background")


@dataclass(frozen=True, slots=True)
class Stream:
    """`requests` hits that arrive over `seconds`, at random."""

    requests: int
    seconds: float

    def arrivals(self, seed: int) -> list[float]:
        """Sorted times in [0, seconds)."""
        rng = random.Random(seed)
        return sorted(rng.random() * self.seconds for _ in range(self.requests))


@dataclass(frozen=True, slots=True)
class Service:
    """What one hit asks for. `shard_seconds[i]` is how long shard i delivers its part while no
    other request waits for a load; `engine_seconds` what the engine does for a loaded prompt, and
    `recompute_seconds` for one that it computes itself.

    `give_up_seconds`: a background load that takes longer is computed instead, and goes on loading.
    `most_loads`: more than so many waiting do not make a load slower still.
    """

    shard_seconds: tuple[float, ...]
    engine_seconds: float
    recompute_seconds: float
    give_up_seconds: float
    slowdown_per_load: float
    most_loads: int

    def stretch(self, waiting: int) -> float:
        """How many times as long a load takes while `waiting` requests wait for theirs."""
        return 1.0 + self.slowdown_per_load * (max(1, min(waiting, self.most_loads)) - 1)


@dataclass(frozen=True, slots=True)
class Run:
    """One seed's run: the latency of each request in order of arrival, and what the engine saw."""

    latency_seconds: tuple[float, ...]
    most_in_flight: int
    gave_up_share: float

    def percentile(self, share: float) -> float:
        """The nearest rank's."""
        ordered = sorted(self.latency_seconds)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    def thirds(self) -> tuple[float, float, float]:
        """The median latency of each third of the requests, in order of arrival."""
        third = len(self.latency_seconds) // 3
        first, second, last = (
            statistics.median(part)
            for part in (
                self.latency_seconds[:third],
                self.latency_seconds[third : 2 * third],
                self.latency_seconds[2 * third :],
            )
        )
        return first, second, last


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over all seeds: its median, and what a tenth of the runs are below and above."""

    median: float
    low: float
    high: float


def simulate(mode: Mode, stream: Stream, service: Service, seed: int) -> Run:
    """One run. The same seed gives every mode and service the same arrivals."""
    arrivals = stream.arrivals(seed)
    return (_in_step if mode == "in-step" else _background)(arrivals, service)


def runs(mode: Mode, stream: Stream, service: Service, seeds: int) -> tuple[Run, ...]:
    """Seeds 0 to `seeds` - 1."""
    return tuple(simulate(mode, stream, service, seed) for seed in range(seeds))


def spread(found: Sequence[Run], figure: Callable[[Run], float]) -> Spread:
    """Of one figure of each run."""
    values = sorted(figure(run) for run in found)
    last = len(values) - 1
    return Spread(statistics.median(values), values[round(0.1 * last)], values[round(0.9 * last)])


def _in_step(arrivals: Sequence[float], service: Service) -> Run:
    """All ranks stand still while a prompt is loaded, so that everything else waits for it."""
    slowest = max(service.shard_seconds)
    now, arrived = 0.0, 0
    finished = []
    for i, at in enumerate(arrivals):
        now = max(now, at)
        while arrived < len(arrivals) and arrivals[arrived] <= now:
            arrived += 1
        now += slowest * service.stretch(arrived - i) + service.engine_seconds
        finished.append(now)
    return _run(arrivals, finished, 0)


def _background(arrivals: Sequence[float], service: Service) -> Run:
    """Each shard works off all loads in order, abandoned ones too; the engine takes prompts as
    they are loaded or given up."""
    loaded = [0.0] * len(arrivals)
    for part_seconds in service.shard_seconds:
        now, arrived = 0.0, 0
        for i, at in enumerate(arrivals):
            now = max(now, at)
            while arrived < len(arrivals) and arrivals[arrived] <= now:
                arrived += 1
            # Those that gave up no longer wait; what they left is worked off in its turn.
            waiting = arrived - max(i, bisect_left(arrivals, now - service.give_up_seconds))
            now += part_seconds * service.stretch(waiting)
            loaded[i] = max(loaded[i], now)
    ready = [
        (min(done, at + service.give_up_seconds), i)
        for i, (done, at) in enumerate(zip(loaded, arrivals, strict=True))
    ]
    finished = [0.0] * len(arrivals)
    now, gave_up = 0.0, 0
    for at, i in sorted(ready):
        is_late = loaded[i] > at
        gave_up += is_late
        now = max(now, at) + (service.recompute_seconds if is_late else service.engine_seconds)
        finished[i] = now
    return _run(arrivals, finished, gave_up)


def _run(arrivals: Sequence[float], finished: Sequence[float], gave_up: int) -> Run:
    in_flight = most = 0
    # One that ends as another comes is gone first.
    for _, change in sorted([*((at, 1) for at in arrivals), *((at, -1) for at in finished)]):
        in_flight += change
        most = max(most, in_flight)
    latencies = tuple(done - at for at, done in zip(arrivals, finished, strict=True))
    return Run(latencies, most, gave_up / len(arrivals))
