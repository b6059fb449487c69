"""What an incident declares: its name, the real fault it makes, and what must be named for it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from lab.settings import Settings

if TYPE_CHECKING:
    from lab.worker import Worker


class Incident:
    """A fault acting on one rank. Subclasses say what it is and override what they need.

    The methods run in different processes: `lmcache_settings` in every worker and the scheduler,
    `install` in every worker before its first step. None may touch what a detector reads.
    """

    name = ""
    summary = ""
    finding = ""  # the finding that names it
    can_start_late = False  # whether --incident-after is possible

    def rank(self, settings: Settings) -> int:
        """The rank it acts on, drawn from the seed."""
        return random.Random(f"{self.name} {settings.seed}").randrange(settings.ranks)

    def lmcache_settings(self, settings: Settings) -> dict[str, Any] | None:
        """LMCache's configuration in place of the healthy one, or None to keep that."""
        return None

    def install(self, worker: Worker) -> None:
        """Prepare the fault in this worker."""
