"""LMCache's connector interface over our client: what one key's fault does, it does to that key.

Upstream's connector returns every buffer of a batch as loaded, whatever became of it, and its
compiled client hangs on a missing key (LMCache #5551) or loses completions (#5547).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lmcache.logging import init_logger
from lmcache.observability import LMCStatsMonitor
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from patched_engine.resp.calls import RespCalls, count_present
from patched_engine.resp.client import MOST_CONNECTIONS, RespClient, Results
from patched_engine.resp.deadlines import Deadlines
from patched_engine.resp.url import SettingError, endpoint_of

logger = init_logger(__name__)

Objects = list[Any]
"""LMCache's memory objects, None for a key that brought nothing."""

DEFAULT_THREADS: Final = 8
_PLAIN_SERDES: Final = ("naive", "kivi")  # upstream's kivi leaves the bytes as they are
_ALLOCATE_TRIES: Final = 5
_ALLOCATE_WAIT_SECONDS: Final = 0.02
_LOOKUP_SHARE: Final = 0.8
"""A worker's answer must be with the scheduler before the scheduler gives up."""
_ROOM_SHARE: Final = 0.5


class RespConnector(RemoteConnector):
    """One shard. Values are whole chunks, without a header, as LMCache's own `resp://` has them.

    `names` below are keys as the server knows them. `on_failed_load` is called once for a load in
    which something went wrong; a missing key is nothing wrong. Raises EndpointError for a URL or a
    setting that cannot be used; a server that is not there is no error: it may come.
    """

    def __init__(
        self,
        url: str,
        config: Any,
        metadata: Any,
        local_cpu_backend: Any,
        on_failed_load: Callable[[], None] = lambda: None,
    ) -> None:
        extra = config.extra_config or {}
        check_settings(config, extra)
        super().__init__(config, metadata)
        threads = _threads(extra)
        self._on_failed_load = on_failed_load
        self.endpoint = endpoint_of(url, extra)
        self._pool = local_cpu_backend
        self._room_seconds = config.lookup_timeout_ms / 1e3 * _ROOM_SHARE
        self._stats = LMCStatsMonitor.GetOrCreate()
        self.calls = _calls(RespClient(self.endpoint, connections=threads), config)

    # Names and memory objects: what the backend asks.

    def count_prefix_sync(self, names: Sequence[str]) -> int:
        """How many of the first names are on the server."""
        return count_present(self.calls.batch_exists_sync(names))

    async def count_prefix(self, names: Sequence[str]) -> int:
        """The same, awaited."""
        return count_present(await self.calls.batch_exists(names))

    def load_sync(self, names: Sequence[str]) -> Objects:
        """One memory object a name, None for a name that brought nothing. The caller owns them."""
        held = self._allocate(len(names), wait=True)
        try:
            results = self.calls.batch_get_sync(names[: len(held)], _bytes_of(held))
        except BaseException:  # Ctrl-C or a bug: nothing of it is anyone's
            _release(held)
            raise
        return self._settle(names, held, results)

    async def load(self, names: Sequence[str]) -> Objects:
        """The same, awaited; cancelling waits until no buffer is touched any more."""
        held = await self._allocate_awaited(len(names))
        try:
            results = await self.calls.batch_get(names[: len(held)], _bytes_of(held))
        except BaseException:
            _release(held)
            raise
        return self._settle(names, held, results)

    def store(self, names: Sequence[str], memory_objs: Sequence[Any]) -> Any:
        """A future of the results; the objects are kept until it is done."""
        return self.calls.batch_set(names, _bytes_of(memory_objs))

    def delete_sync(self, names: Sequence[str]) -> int:
        """How many were deleted."""
        return sum(result.ok for result in self.calls.batch_delete_sync(names))

    def close_now(self) -> None:
        """End what is in flight, then threads and connections."""
        self.calls.client.close()

    def _settle(self, names: Sequence[str], held: Objects, results: Results) -> Objects:
        """Keep what was filled, free what was not, say what went wrong."""
        loaded: Objects = []
        wrong = ""
        for memory_obj, result in zip(held, results, strict=True):
            if result.ok:
                loaded.append(memory_obj)
                continue
            loaded.append(None)
            memory_obj.ref_count_down()
            wrong = wrong or result.detail
        size_bytes = sum(item.get_size() for item in loaded if item is not None)
        self._stats.update_interval_remote_read_metrics(size_bytes)
        if wrong:
            self._on_failed_load()
        missing = len(names) - sum(item is not None for item in loaded)
        if missing:
            why = wrong or ("not there" if len(held) == len(names) else "no free CPU memory")
            logger.warning(
                "%s: %d of %d chunks could not be loaded: %s",
                self.endpoint,
                missing,
                len(names),
                why,
            )
        return loaded + [None] * (len(names) - len(held))

    def _allocate(self, count: int, wait: bool) -> Objects:
        """As many buffers as can be had now, or soon: PUTs under way give theirs back."""
        held: Objects = []
        tries = _ALLOCATE_TRIES if wait else 1
        while len(held) < count and tries:
            memory_obj = self._allocate_one()
            if memory_obj is not None:
                held.append(memory_obj)
                continue
            tries -= 1
            if tries:
                time.sleep(_ALLOCATE_WAIT_SECONDS)
        return held

    async def _allocate_awaited(self, count: int) -> Objects:
        """The same; outside of a step, so for as long as the scheduler waits for the lookup."""
        deadline = time.monotonic() + self._room_seconds
        held = self._allocate(count, wait=False)
        while len(held) < count and time.monotonic() < deadline:
            await asyncio.sleep(_ALLOCATE_WAIT_SECONDS)
            held += self._allocate(count - len(held), wait=False)
        return held

    def _allocate_one(self) -> Any:
        return self._pool.allocate(
            self.meta_shapes, self.meta_dtypes, self.meta_fmt, eviction=True, busy_loop=False
        )

    # LMCache's own interface, for whatever of it asks a connector directly.

    async def exists(self, key: Any) -> bool:
        """Whether the server has it."""
        return await self.count_prefix([key.to_string()]) == 1

    def exists_sync(self, key: Any) -> bool:
        """The same, blocking."""
        return self.count_prefix_sync([key.to_string()]) == 1

    async def get(self, key: Any) -> Any:
        """The chunk, or None."""
        return (await self.load([key.to_string()]))[0]

    async def put(self, key: Any, memory_obj: Any) -> None:
        """Store one chunk. Raises RuntimeError where the server did not take it."""
        await self.batched_put([key], [memory_obj])

    def support_batched_get(self) -> bool:
        """Yes."""
        return True

    async def batched_get(self, keys: Objects) -> Objects:
        """One object or None a key."""
        return await self.load([key.to_string() for key in keys])

    def support_batched_put(self) -> bool:
        """Yes."""
        return True

    async def batched_put(self, keys: Objects, memory_objs: Objects) -> None:
        """Store chunks. Raises RuntimeError where the server did not take one."""
        future = self.store([key.to_string() for key in keys], memory_objs)
        for result in await asyncio.shield(asyncio.wrap_future(future)):
            if not result.ok:
                raise RuntimeError(f"{self.endpoint}: SET failed: {result.detail}")

    def support_batched_contains(self) -> bool:
        """Yes."""
        return True

    def batched_contains(self, keys: Objects) -> int:
        """How many of the first keys are there."""
        return self.count_prefix_sync([key.to_string() for key in keys])

    async def batched_async_contains(self, lookup_id: str, keys: Objects, pin: bool = False) -> int:
        """The same, awaited."""
        return await self.count_prefix([key.to_string() for key in keys])

    async def batched_get_non_blocking(self, lookup_id: str, keys: Objects) -> Objects:
        """The loaded prefix; what was loaded behind a gap is freed."""
        return keep_prefix(await self.batched_get(keys))

    def remove_sync(self, key: Any) -> bool:
        """Delete it from the server."""
        return self.delete_sync([key.to_string()]) == 1

    async def list(self) -> Sequence[str]:
        """Not listed: a shard holds other pods' chunks too."""
        return []

    def support_ping(self) -> bool:
        """Yes."""
        return True

    async def ping(self) -> int:
        """0 when the server answers, else 1."""
        try:
            await asyncio.to_thread(self.calls.client.check)
        except OSError:
            return 1
        return 0

    async def close(self) -> None:
        """As `close_now`, without holding the loop."""
        await asyncio.to_thread(self.close_now)


def check_settings(config: Any, extra: Mapping[str, Any]) -> None:
    """Raises SettingError for what a value that is a whole chunk as in L1 cannot serve."""
    for name, is_set in (
        ("extra_config save_chunk_meta true", extra.get("save_chunk_meta", False)),
        ("save_unfull_chunk true", config.save_unfull_chunk),
        ("use_layerwise true", config.use_layerwise),
        (f"remote_serde {config.remote_serde}", config.remote_serde not in _PLAIN_SERDES),
    ):
        if is_set:
            raise SettingError(
                f"{name} does not go with resp://, whose values are whole chunks as they are in L1:"
                " change it, or remote_url"
            )


def _threads(extra: Mapping[str, Any]) -> int:
    given = extra.get("resp_num_threads", DEFAULT_THREADS)
    try:
        threads = int(given)
    except (TypeError, ValueError):
        threads = 0
    if not 1 <= threads <= MOST_CONNECTIONS:
        raise SettingError(
            f"extra_config resp_num_threads {given!r}: give a whole number from 1 to"
            f" {MOST_CONNECTIONS}"
        )
    return threads


def keep_prefix(loaded: Objects) -> Objects:
    """The objects before the first None; those behind it are freed."""
    if None not in loaded:
        return loaded
    first = loaded.index(None)
    _release(item for item in loaded[first:] if item is not None)
    return loaded[:first]


def _calls(client: RespClient, config: Any) -> RespCalls:
    """Deadlines from LMCache's own timeouts, and inside of them."""
    blocking_seconds = float(config.blocking_timeout_secs)
    lookup_seconds = min(config.lookup_timeout_ms / 1e3, blocking_seconds) * _LOOKUP_SHARE
    connect_seconds = min(1.0, lookup_seconds)
    return RespCalls(
        client,
        lookup=Deadlines(connect_seconds, lookup_seconds, lookup_seconds),
        load=Deadlines(connect_seconds, blocking_seconds / 2, blocking_seconds * _LOOKUP_SHARE),
        store=Deadlines(connect_seconds, blocking_seconds, None),
    )


def _bytes_of(memory_objs: Sequence[Any]) -> list[memoryview]:
    return [memoryview(item.byte_array).cast("B") for item in memory_objs]


def _release(memory_objs: Any) -> None:
    for item in memory_objs:
        item.ref_count_down()
