"""dead-shard: a cache server is gone: its connections are reset, new ones refused."""

from __future__ import annotations

import signal

from lab.incidents.shard_signal import ShardSignal


class DeadShard(ShardSignal):
    """The out-of-memory killer, or a node that went away."""

    name = "dead-shard"
    summary = "one Valkey, drawn from the seed, is killed and does not come back"
    cause = "connection_refused"
    signal = signal.SIGKILL
