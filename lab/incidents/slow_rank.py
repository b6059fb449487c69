"""slow-rank: one rank computes slower than the others, so it is last at every collective."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lab.incidents.base import Incident
from lab.settings import Settings

if TYPE_CHECKING:
    from lab.worker import Worker

STRETCH: Final = 1.3


class SlowRank(Incident):
    """A throttled device or a noisy neighbour: the same work takes 30% longer on one rank."""

    name = "slow-rank"
    summary = "one rank, drawn from the seed, computes 30% slower and is late at each collective"
    finding = "straggler-rank"
    can_start_late = True

    def install(self, worker: Worker) -> None:
        if worker.rank != self.rank(worker.settings):
            return
        after_seconds = worker.settings.incident_after_seconds

        def stretch() -> float:
            return STRETCH if time.monotonic() - worker.go_seconds >= after_seconds else 1.0

        worker.compute_stretch = stretch

    def strike(self, settings: Settings, server_pids: Sequence[int]) -> bool:
        return True
