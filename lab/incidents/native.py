"""Puts a fault between LMCache's Python client and the compiled one, at one chosen call."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lab.losses import patched_calls_of

if TYPE_CHECKING:
    import redis

    from lab.incidents.base import Incident
    from lab.worker import Worker

# A batch of which one key can be lost that is neither the first nor the last.
_KEYS: Final = 3


class BeforeGets:
    """The native client, whose first batch of GETs after a moment finds that `act` has happened.

    LMCache has by then found all its keys with EXISTS, in the lookup and again in the load.
    """

    def __init__(self, native: Any, is_due: Callable[[], bool], act: Callable[[list[str]], None]):
        self._native = native
        self._is_due = is_due
        self._act = act
        self._armed = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def submit_batch_get(self, keys: list[str], bufs: list[memoryview]) -> Any:
        if self._armed and len(keys) >= _KEYS and self._is_due():
            self._armed = False
            self._act(keys)
        return self._native.submit_batch_get(keys, bufs)


def before_gets(
    incident: Incident, worker: Worker, act: Callable[[redis.Redis, list[str]], None]
) -> None:
    """Have `act` done on the drawn rank, once, between the EXISTS of a load and its GETs."""
    import redis

    if worker.rank != incident.acting_rank(worker.settings):
        return

    def act_and_tell(keys: list[str]) -> None:
        with redis.Redis(port=worker.shard_port, socket_timeout=10.0) as server:
            act(server, keys)
        worker.tell_begun()

    def due() -> bool:
        return is_due(incident, worker)

    if (client := worker.native_client) is not None:
        client._client = BeforeGets(client._client, due, act_and_tell)
    elif (calls := patched_calls_of(worker.engine)) is not None:
        _before_patched_gets(calls, due, act_and_tell)


def _before_patched_gets(
    calls: Any, is_due: Callable[[], bool], act: Callable[[list[str]], None]
) -> None:
    """The same for the patched engine's client, which has a blocking and an awaited GET."""
    get_sync, get = calls.batch_get_sync, calls.batch_get
    armed = [True]

    def once(keys: list[str]) -> None:
        if armed[0] and len(keys) >= _KEYS and is_due():
            armed[0] = False
            act(keys)

    def act_then_get_sync(keys: list[str], buffers: Any) -> Any:
        once(keys)
        return get_sync(keys, buffers)

    async def act_then_get(keys: list[str], buffers: Any) -> Any:
        once(keys)
        return await get(keys, buffers)

    calls.batch_get_sync, calls.batch_get = act_then_get_sync, act_then_get


def is_due(incident: Incident, worker: Worker) -> bool:
    """Whether the run is under way for as long as the incident is to wait."""
    elapsed_seconds = time.monotonic() - worker.go_seconds
    return worker.go_seconds > 0 and elapsed_seconds >= incident.after_seconds(worker.settings)


def own_addresses(peer_port: int) -> set[str]:
    """ "host:port" of this process's ends of its connections to `peer_port` on this host."""
    ends = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family == socket.AF_INET and connection.getpeername()[1] == peer_port:
                    ends.add("{}:{}".format(*connection.getsockname()))
        except OSError:
            continue  # closed meanwhile, or not connected
    return ends
