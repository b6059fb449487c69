"""busy-shard: something else keeps the one thread of a shard at work, and chunks wait for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from lab.incidents.base import Incident
from lab.incidents.servers import client_of
from lab.settings import Settings

# Each script runs for some 20 ms, as a scan of many keys or a delete of a large one does.
_SCRIPT: Final = "local n = 0 for i = 1, tonumber(ARGV[1]) do n = n + i end return n"
_TURNS: Final = 2_000_000


class BusyShard(Incident):
    """A job that scans, or scripts of another tenant, from one connection."""

    name = "busy-shard"
    summary = "one rank's shard, drawn from the seed, is kept busy by scripts of somebody else"
    finding = "shard-saturated"
    can_start_late = True
    is_at_shard = True
    earliest_seconds = 5.0
    decidable_seconds = 3.0

    def strike(self, settings: Settings, server_pids: Sequence[int]) -> bool:
        pid = server_pids[self.shard(settings)]
        for number in range(2):  # while one is answered, the other is next
            threading.Thread(
                target=_keep_busy, args=(pid,), name=f"{self.name}-{number}", daemon=True
            ).start()
        return True


def _keep_busy(pid: int) -> None:
    import redis

    try:
        with client_of(pid) as server:
            while True:
                server.eval(_SCRIPT, 0, str(_TURNS))
    except (redis.RedisError, OSError):
        return  # the run is over
