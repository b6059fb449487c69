"""frozen-shard: a cache server is there, takes connections and does not answer."""

from __future__ import annotations

import signal

from lab.incidents.shard_signal import ShardSignal


class FrozenShard(ShardSignal):
    """SIGSTOP. Lookups that wait for it look as stuck as after a lost completion, and must not be
    named so."""

    name = "frozen-shard"
    summary = "one Valkey, drawn from the seed, is stopped: it takes connections, never answers"
    cause = "timeout"
    signal = signal.SIGSTOP
