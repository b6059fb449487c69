"""Follows one engine's counters over a quarter of an hour, for the rates of the cost model."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from exporters.snapshot import EngineModel, ModelPoint, Process

POINT_SECONDS: Final = 15.0
# The 15 minutes of a trend, and the 3 for which it must have stood.
KEPT_SECONDS: Final = 1080.0
# A stretch of cold prefill is so long: steps that lie across its ends then weigh little.
COLD_STRETCH_SECONDS: Final = 1.0
KEPT_COLD_RATES: Final = 60
# A page that cannot be read for a moment is no restart.
_GRACE_SECONDS: Final = 5.0
# Where fewer of the steps are of prompts, time in steps is not the prompts'.
PREFILL_STEPS_SHARE: Final = 0.8
_LEAST_STEPS: Final = 50
_NANOSECONDS: Final = 1e9
_DONE: Final = ("requests_hit_none", "requests_hit_engine", "requests_hit_external")
_MOVED: Final = ("store", "load_l1", "load_l2")

_Life = tuple[tuple[str, int], ...]


class ModelJoiner:
    """One engine, from tick to tick. It begins anew where one of its processes was restarted."""

    def __init__(self) -> None:
        self._life: _Life = ()
        self._seen_seconds = 0.0  # when that was last who runs
        self._begin()
        self._token_bytes = 0.0
        self._cold_tokens, self._cold_seconds = 0, 0.0
        self._cold_rates: deque[float] = deque(maxlen=KEPT_COLD_RATES)

    def _begin(self) -> None:
        self._points: deque[ModelPoint] = deque()
        self._before: tuple[int, int, float] | None = None  # loads, prompt tokens, busy seconds
        self._was_quiet = False
        self._stretch = (0, 0.0)

    def update(self, processes: Sequence[Process], now_seconds: float) -> EngineModel:
        """The model's figures with this tick's counters."""
        alive = [p for p in processes if p.liveness != "dead"]
        life = tuple(sorted((p.page, p.incarnation) for p in alive))
        if life != self._life:
            if self._life and now_seconds - self._seen_seconds <= _GRACE_SECONDS:
                return self._model(tuple(self._points), "")
            self._life = life
            self._begin()
        self._seen_seconds = now_seconds
        workers = [p for p in alive if "worker" in p.roles]
        schedulers = [p for p in alive if "scheduler" in p.roles]
        self._token_bytes = _token_bytes(workers) or self._token_bytes
        points: tuple[ModelPoint, ...] = ()
        unseen = _unseen(workers, schedulers)
        if workers and schedulers:
            busy = max(p.counters.get("step_nanoseconds", 0) for p in workers) / _NANOSECONDS
            done = sum(_total(schedulers, name) for name in _DONE)
            now = ModelPoint(now_seconds, _total(schedulers, "requests_admitted"), done, busy)
            points = self._add(now)
            self._measure_cold(
                _total(workers, "load_calls"),
                _total(schedulers, "scheduled_prefill_tokens"),
                busy,
            )
        return self._model(points, unseen)

    def _model(self, points: tuple[ModelPoint, ...], unseen: str) -> EngineModel:
        return EngineModel(
            points=points,
            token_bytes=self._token_bytes,
            cold_tokens=self._cold_tokens,
            cold_seconds=self._cold_seconds,
            cold_rates=tuple(self._cold_rates),
            unseen=unseen,
        )

    def _add(self, now: ModelPoint) -> tuple[ModelPoint, ...]:
        kept = self._points
        if not kept or now.at_seconds - kept[-1].at_seconds >= POINT_SECONDS:
            kept.append(now)
        while now.at_seconds - kept[0].at_seconds > KEPT_SECONDS:
            kept.popleft()
        return tuple(kept) if kept[-1] is now else (*kept, now)

    def _measure_cold(self, loads: int, tokens: int, busy_seconds: float) -> None:
        """A tick counts when no load ended in it or in the one before: a step that a load made
        long may end a tick later."""
        before, self._before = self._before, (loads, tokens, busy_seconds)
        if before is None:
            return
        is_quiet = loads == before[0]
        was_quiet, self._was_quiet = self._was_quiet, is_quiet
        if not (is_quiet and was_quiet):
            self._stretch = (0, 0.0)
            return
        more = (self._stretch[0] + tokens - before[1], self._stretch[1] + busy_seconds - before[2])
        if more[1] < COLD_STRETCH_SECONDS:
            self._stretch = more
            return
        self._stretch = (0, 0.0)
        if more[0] > 0:
            self._cold_tokens += more[0]
            self._cold_seconds += more[1]
            self._cold_rates.append(more[0] / more[1])


def _total(processes: Sequence[Process], name: str) -> int:
    return sum(process.counters.get(name, 0) for process in processes)


def _token_bytes(workers: Sequence[Process]) -> float:
    """Bytes of a chunk over its tokens; 0.0 where no chunk was moved, or its size is not said."""
    chunks = sum(_total(workers, f"{name}_chunks") for name in _MOVED)
    size = sum(_total(workers, f"{name}_bytes") for name in _MOVED)
    tokens = next((n for p in workers if isinstance(n := p.info.get("chunk_tokens"), int)), 0)
    return size / chunks / tokens if chunks > 0 and tokens > 0 else 0.0


def _unseen(workers: Sequence[Process], schedulers: Sequence[Process]) -> str:
    if not workers:
        return "no worker of it has a page"
    if not schedulers:
        return "its scheduler has no page, and only that sees requests come"
    steps = max(p.counters.get("steps", 0) for p in workers)
    if steps < _LEAST_STEPS:
        return ""
    if not _total(schedulers, "requests_admitted"):
        return "its workers step, but its scheduler's page counts no request"
    if _total(schedulers, "prefill_steps") < PREFILL_STEPS_SHARE * steps:
        return "it decodes too, and time in steps does not tell whose it was"
    return ""
