"""lost-keys: one shard of the sharded engine loses a part of its chunks, and nobody is told."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Final

from lab.incidents.base import Incident
from lab.incidents.servers import client_of
from lab.settings import Settings

LOST_SHARE: Final = 0.3
LOST_EVERY_SECONDS: Final = 1.0
_MARK: Final = b"stallscope:"  # the shard's marker is no chunk


class LostKeys(Incident):
    """A failed node of its storage, an operator's pattern, an eviction by another tenant."""

    name = "lost-keys"
    summary = "one rank's shard, drawn from the seed, loses 30% of its chunks each second"
    finding = "orphaned-chunks"
    engine = "sharded"
    can_start_late = True
    is_at_shard = True
    earliest_seconds = 15.0  # there must be chunks to lose, and lookups that miss them
    decidable_seconds = 4.0  # some lookups must have missed them

    def strike(self, settings: Settings, server_pids: Sequence[int]) -> bool:
        pid = server_pids[self.shard(settings)]
        draw = random.Random(f"{self.name} keys {settings.seed}")
        threading.Thread(target=_lose, args=(pid, draw), name=self.name, daemon=True).start()
        return True


def _lose(pid: int, draw: random.Random) -> None:
    """Again and again: what is computed anew is stored anew."""
    import redis

    try:
        with client_of(pid) as server:
            while True:
                keys = sorted(k for k in server.scan_iter(count=1000) if not k.startswith(_MARK))
                if lost := draw.sample(keys, round(LOST_SHARE * len(keys))):
                    server.delete(*lost)
                time.sleep(LOST_EVERY_SECONDS)
    except (redis.RedisError, OSError):
        return  # the run is over
