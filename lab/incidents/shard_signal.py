"""What dead-shard and frozen-shard share: a signal to one cache server."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from lab.incidents.base import Incident
from lab.settings import Settings


class ShardSignal(Incident):
    """Sends `signal` to the server of the drawn rank."""

    finding = "shard-down"
    can_start_late = True
    is_at_shard = True
    earliest_seconds = 5.0
    signal: signal.Signals

    def strike(self, settings: Settings, server_pids: Sequence[int]) -> bool:
        os.kill(server_pids[self.shard(settings)], self.signal)
        return True
