"""evicted-keys: a full shard evicts chunks between the EXISTS that found them and their GET."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lab.incidents.base import Incident
from lab.incidents.native import before_gets

if TYPE_CHECKING:
    import redis

    from lab.worker import Worker

_HEADROOM_BYTES: Final = 4 << 20
_VALUE_BYTES: Final = 1 << 18


class EvictedKeys(Incident):
    """Another pod's chunks come in at a shard without room, as one rank begins a load."""

    name = "evicted-keys"
    summary = "a shard at its memory limit evicts what one rank's lookup had found, before its GETs"
    finding = "evicted-before-load"
    cause = "eviction"
    can_start_late = True
    is_at_shard = True  # whose keys go first is the shard's choice

    def install(self, worker: Worker) -> None:
        before_gets(self, worker, _evict)


def _evict(server: redis.Redis, keys: list[str]) -> None:
    """Write until one of these keys has made room."""
    memory: Any = server.info("memory")
    server.config_set("maxmemory", memory["used_memory"] + _HEADROOM_BYTES)
    number = 0
    while server.exists(*keys) == len(keys):
        server.set(f"another-pod:{number}", b"x" * _VALUE_BYTES)
        number += 1
