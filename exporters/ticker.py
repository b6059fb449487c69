"""The exporter's own clock: evaluates once a second, whoever asks and however often."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from exporters.snapshot import Evaluation

INTERVAL_SECONDS = 1.0

logger = logging.getLogger("stallscope")


class Ticks(Protocol):
    """What is ticked: an Evaluator."""

    def tick(self) -> Evaluation: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Tick:
    """One finished tick: its number from 1, its result, when it began and how long it took."""

    number: int
    evaluation: Evaluation
    began_seconds: float
    duration_seconds: float


class Ticker:
    """A thread that ticks until `stop`. `latest` never waits for it; `take` gets each result, and
    must not wait."""

    def __init__(
        self,
        ticks: Ticks,
        clock: Callable[[], float] = time.monotonic,
        take: Callable[[Evaluation], None] | None = None,
    ) -> None:
        self._ticks = ticks
        self._take = take
        self._clock = clock
        self._latest: Tick | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stallscope-tick", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and let go of what the evaluator holds."""
        self._stop.set()
        self._thread.join()

    def latest(self) -> Tick | None:
        """The newest finished tick, None before the first."""
        return self._latest

    def _run(self) -> None:
        number = 0
        due = self._clock()
        try:
            while not self._stop.is_set():
                began = self._clock()
                try:
                    evaluation = self._ticks.tick()
                    number += 1
                    self._latest = Tick(number, evaluation, began, self._clock() - began)
                    if self._take is not None:
                        self._take(evaluation)
                except Exception:  # the next tick may succeed; meanwhile the age tells
                    logger.exception("a tick failed")
                due = max(due + INTERVAL_SECONDS, self._clock())
                self._stop.wait(due - self._clock())
        finally:
            self._ticks.close()
