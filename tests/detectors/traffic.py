"""Engines whose prompts come at a rate that a test draws, as the points of the cost model."""

from __future__ import annotations

import dataclasses
import random
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from exporters.model_joiner import KEPT_SECONDS, POINT_SECONDS
from exporters.snapshot import EngineModel, ModelPoint, Snapshot
from tests.detectors.pictures import engine


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt of a single-server queue."""

    arrived: float
    started: float
    finished: float


def queue(
    rate: Callable[[float], float], seconds: float, service: float, seed: int, spread: float = 0.33
) -> list[Request]:
    """Prompts that come at `rate(at)` a second, each `service` seconds long give or take a share
    of it, one at a time and in order."""
    rng = random.Random(seed)
    most = max(rate(s) for s in range(int(seconds) + 1))
    at, free, found = 0.0, 0.0, []
    while (at := at + rng.expovariate(most)) < seconds:
        if rng.random() < rate(at) / most:
            started = max(at, free)
            free = started + service * rng.uniform(1 - spread, 1 + spread)
            found.append(Request(at, started, free))
    return found


def points(requests: list[Request], until: float) -> tuple[ModelPoint, ...]:
    """As a joiner keeps them that began at 0."""
    arrived = [r.arrived for r in requests]
    finished = [r.finished for r in requests]
    busy = [0.0, *accumulate(r.finished - r.started for r in requests)]
    found = []
    for i in range(int(until // POINT_SECONDS) + 1):
        at = i * POINT_SECONDS
        if until - at <= KEPT_SECONDS:
            done = bisect_right(finished, at)
            found.append(ModelPoint(at, bisect_right(arrived, at), done, busy[done]))
    return tuple(found)


def snapshot(found: tuple[ModelPoint, ...], **model: object) -> Snapshot:
    made = dataclasses.replace(engine(2), model=EngineModel(points=found, **model))
    return Snapshot(found[-1].at_seconds if found else 0.0, 1.7e9, engines=(made,))


def percentile(requests: list[Request], share: float) -> float:
    """Of their latencies; nearest rank."""
    ordered = sorted(r.finished - r.arrived for r in requests)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
