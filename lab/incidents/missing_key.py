"""missing-key: a chunk is deleted between the EXISTS that found it and its GET."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.incidents.base import Incident
from lab.incidents.native import before_gets

if TYPE_CHECKING:
    import redis

    from lab.worker import Worker


class MissingKey(Incident):
    """Somebody's DEL, or a key's own expiry: the shard has memory to spare."""

    name = "missing-key"
    summary = "a chunk that one rank's lookup found is deleted before its GET: the client hangs"
    finding = "wedged-connection"
    cause = "missing-key"
    can_start_late = True

    def install(self, worker: Worker) -> None:
        before_gets(self, worker, _delete)


def _delete(server: redis.Redis, keys: list[str]) -> None:
    server.delete(keys[len(keys) // 2])
