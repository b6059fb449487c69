"""dead-shard and frozen-shard: a cache server is gone, or is there and does not answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from lab.incidents.base import Incident
from lab.settings import Settings


class _ShardSignal(Incident):
    finding = "shard-down"
    can_start_late = True
    is_at_shard = True
    earliest_seconds = 5.0
    signal = signal.SIGKILL

    def strike(self, settings: Settings, server_pids: Sequence[int]) -> bool:
        os.kill(server_pids[self.shard(settings)], self.signal)
        return True


class DeadShard(_ShardSignal):
    """The process is gone: connections are reset, new ones refused."""

    name = "dead-shard"
    summary = "one Valkey, drawn from the seed, is killed and does not come back"
    cause = "connection_refused"


class FrozenShard(_ShardSignal):
    """SIGSTOP: its connections stay open and nothing answers. Lookups that wait for it look as
    stuck as a lost completion, and must not be named so."""

    name = "frozen-shard"
    summary = "one Valkey, drawn from the seed, is stopped: it takes connections, never answers"
    cause = "timeout"
    signal = signal.SIGSTOP
