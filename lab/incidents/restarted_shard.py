"""restarted-shard: one cache server begins anew, empty, as a rollout or a crash leaves it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from lab.incidents.base import Incident
from lab.incidents.servers import client_of
from lab.settings import Settings


class RestartedShard(Incident):
    """The server replaces itself by a new one under the same pid and address."""

    name = "restarted-shard"
    summary = "one rank's shard, drawn from the seed, is restarted and comes back empty"
    finding = "cold-shard"
    cause = "restart"
    engine = "sharded"
    can_start_late = True
    is_at_shard = True
    earliest_seconds = 20.0  # the others must be warm by then
    decidable_seconds = 2.0

    def strike(self, settings: Settings, server_pids: Sequence[int]) -> bool:
        import redis

        with (
            client_of(server_pids[self.shard(settings)]) as server,
            contextlib.suppress(redis.ConnectionError),  # it goes before it answers
        ):
            server.execute_command("DEBUG", "RESTART")
        return True
