"""What an incident declares: its name, the real fault it makes, and what must be named for it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lab.settings import Settings

if TYPE_CHECKING:
    from lab.worker import Worker


class Incident:
    """A fault acting on one rank or one shard. Subclasses say what it is and override what they
    need.

    The methods run in different processes: `lmcache_settings` in every worker and the scheduler,
    `install` in every worker before its first step, `strike` in the lab's parent. None may touch
    what a detector reads.
    """

    name = ""
    summary = ""
    finding = ""  # the finding that names it
    cause = ""  # and the cause that it must give, where the finding has several
    can_start_late = False  # whether --incident-after is possible
    goes_with_async = True
    engine = ""  # the only --engine on which it can be; "" for any
    is_at_shard = False  # the place to be named is a shard, not a rank
    has_shard = True  # the place has a shard
    # Nothing is there to be lost before something was stored.
    earliest_seconds = 0.0
    # How long the fault must have lasted before anyone could tell it from a slow moment.
    decidable_seconds = 0.0

    def rank(self, settings: Settings) -> int | None:
        """The rank to be named; None where it is a shard."""
        return None if self.is_at_shard else self.acting_rank(settings)

    def acting_rank(self, settings: Settings) -> int:
        """The rank at which it happens, drawn from the seed."""
        return random.Random(f"{self.name} {settings.seed}").randrange(settings.ranks)

    def shard(self, settings: Settings) -> int:
        """The index of the shard that this rank uses."""
        return self.acting_rank(settings) % settings.shards

    def after_seconds(self, settings: Settings) -> float:
        """When it may begin, in seconds of the run."""
        return max(settings.incident_after_seconds, self.earliest_seconds)

    def lmcache_settings(self, settings: Settings) -> dict[str, Any] | None:
        """LMCache's configuration in place of the healthy one, or None to keep that."""
        return None

    def install(self, worker: Worker) -> None:
        """Prepare the fault in this worker."""

    def strike(self, settings: Settings, server_pids: Sequence[int]) -> bool:
        """Called once in the lab's parent when it may begin. True if it begins now, False if the
        worker in which it waits for its moment will tell."""
        return False
