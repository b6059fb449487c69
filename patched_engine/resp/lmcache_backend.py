"""LMCache's L2 backend over our client, in the place of its own for `resp://`.

It is a RemoteBackend to everything that asks. Blocking calls go to the client from the caller's
thread, not through LMCache's event loop; nothing outlives its deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lmcache.logging import init_logger
from lmcache.v1.storage_backend.remote_backend import RemoteBackend

from patched_engine.patches.placeholders import fill
from patched_engine.resp.client import Future, Results
from patched_engine.resp.lmcache_connector import Objects, RespConnector, keep_prefix

logger = init_logger(__name__)


class RespBackend(RemoteBackend):
    """L2 at `remote_url`, `{rank}` filled in with this worker's rank (LMCache #5548).

    In MLA mode every key is asked under worker 0's name, prefetching GETs too (#5550). The
    scheduler has no L1 to load into: there it only answers what is present. Raises EndpointError,
    PlaceholderError or ValueError for settings that cannot be used.
    """

    connection: RespConnector | None
    fills_rank = True

    def __init__(
        self,
        config: Any,
        metadata: Any,
        loop: Any,
        local_cpu_backend: Any,
        dst_device: str = "cpu",
        plugin_name: str | None = None,
    ) -> None:
        self._url = fill(config.remote_url, metadata.worker_id)
        super().__init__(config, metadata, loop, local_cpu_backend, dst_device, plugin_name)
        self.as_rank0 = bool(self._mla_worker_id_as0_mode)

    def __str__(self) -> str:
        return "RemoteBackend"

    def init_connection(self) -> None:
        """Make the client; it connects when it is first used, and again whenever it must."""
        if self.connection is None:
            self.connection = RespConnector(
                self._url,
                self.config,
                self.metadata,
                self.local_cpu_backend,
                self._count_failed_load,
            )

    def _count_failed_load(self) -> None:
        """What LMCache's health check looks at: a server that is there and has no such key is
        healthy."""
        self._get_blocking_failed_count += 1

    def names(self, keys: Sequence[Any]) -> list[str]:
        """The keys as the server knows them."""
        if self.as_rank0:
            return [key.with_new_worker_id(0).to_string() for key in keys]
        return [key.to_string() for key in keys]

    # Lookups.

    def contains(self, key: Any, pin: bool = False) -> bool:
        """Whether it is on the server; False where that cannot be told."""
        return self.batched_contains([key], pin) == 1

    def batched_contains(self, keys: Sequence[Any], pin: bool = False) -> int:
        """How many of the first keys are on the server."""
        connection = self.connection  # `close` may take it away at any time
        if connection is None or not keys:
            return 0
        return connection.count_prefix_sync(self.names(keys))

    async def batched_async_contains(
        self, lookup_id: str, keys: Sequence[Any], pin: bool = False
    ) -> int:
        """The same, awaited."""
        connection = self.connection
        if connection is None or not keys:
            return 0
        return await connection.count_prefix(self.names(keys))

    # Loads.

    def get_blocking(self, key: Any) -> Any:
        """The chunk, or None."""
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys: Sequence[Any]) -> Objects:
        """One object or None a key, in their order. The caller owns the objects."""
        connection = self.connection
        if connection is None or self.local_cpu_backend is None or not keys:
            return [None] * len(keys)
        begun = time.perf_counter()
        loaded = connection.load_sync(self.names(keys))
        seconds = time.perf_counter() - begun
        self.stats_monitor.update_interval_remote_time_to_get_sync(seconds * 1e3)
        return loaded

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: Sequence[Any], transfer_spec: Any = None
    ) -> Objects:
        """The loaded prefix."""
        connection = self.connection
        if connection is None or self.local_cpu_backend is None or not keys:
            return []
        return keep_prefix(await connection.load(self.names(keys)))

    # Stores.

    def submit_put_task(
        self,
        key: Any,
        memory_obj: Any,
        on_complete_callback: Callable[[Any], None] | None = None,
    ) -> Future[None]:
        """Store one chunk in the background; the future is done when that is, and raises
        RuntimeError where the server did not take it."""
        done: Future[None] = Future()

        def stored(results: Results) -> None:
            failed = next((result for result in results if not result.ok), None)
            if failed is None:
                done.set_result(None)
            else:
                done.set_exception(RuntimeError(f"{self._shard()}: SET failed: {failed.detail}"))

        if not self._put([key], [memory_obj], on_complete_callback, stored):
            done.set_result(None)  # another rank's, or on its way already
        return done

    def batched_submit_put_task(
        self,
        keys: Sequence[Any],
        memory_objs: Sequence[Any],
        transfer_spec: Any = None,
        on_complete_callback: Callable[[Any], None] | None = None,
    ) -> None:
        """Store chunks in the background, each held until it is sent or given up.

        As upstream, ranks that ask under worker 0's name leave the storing to worker 0. A key that
        is being stored is not stored again.
        """
        self._put(keys, memory_objs, on_complete_callback)

    def _put(
        self,
        keys: Sequence[Any],
        memory_objs: Sequence[Any],
        on_complete_callback: Callable[[Any], None] | None,
        then: Callable[[Results], None] = lambda _results: None,
    ) -> bool:
        """Whether there is anything to store; `then` is told of it at the end."""
        connection = self.connection
        if connection is None or self._mla_worker_id_as0_mode:
            return False
        taken: list[Any] = []
        held: list[Any] = []
        with self.lock:
            for key, memory_obj in zip(keys, memory_objs, strict=False):
                if key not in self.put_tasks:
                    self.put_tasks.add(key)
                    taken.append(key)
                    held.append(memory_obj)
        if not taken:
            return False
        for memory_obj in held:
            memory_obj.ref_count_up()
        begun = time.perf_counter()

        def stored(future: Future[Results]) -> None:
            results = future.result()
            with self.lock:
                self.put_tasks.difference_update(taken)
            size_bytes = 0
            for memory_obj, result in zip(held, results, strict=True):
                size_bytes += memory_obj.get_size() if result.ok else 0
                memory_obj.ref_count_down()
            self._count_stored(size_bytes, begun)
            self._report(taken, results, on_complete_callback)
            then(results)

        connection.store(self.names(taken), held).add_done_callback(stored)
        return True

    def _count_stored(self, size_bytes: int, begun: float) -> None:
        milliseconds = (time.perf_counter() - begun) * 1e3
        self.stats_monitor.update_interval_remote_time_to_put(milliseconds)
        self.stats_monitor.update_interval_remote_write_metrics(size_bytes)

    def _report(
        self,
        keys: Sequence[Any],
        results: Results,
        on_complete_callback: Callable[[Any], None] | None,
    ) -> None:
        failed = [result for result in results if not result.ok]
        if failed:
            self._put_failed_count += len(failed)
            logger.warning(
                "%s: %d of %d chunks were not stored: %s",
                self._shard(),
                len(failed),
                len(results),
                failed[0].detail,
            )
        if on_complete_callback is None:
            return
        for key, result in zip(keys, results, strict=True):
            if result.ok:
                try:
                    on_complete_callback(key)
                except Exception as error:
                    logger.warning("on_complete_callback failed for key %s: %s", key, error)

    def remove(self, key: Any, force: bool = True) -> bool:
        """Delete it from the server."""
        connection = self.connection
        return connection is not None and connection.delete_sync(self.names([key])) == 1

    def close(self) -> None:
        """End what is in flight; threads and connections are gone when it returns."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close_now()

    def _shard(self) -> str:
        connection = self.connection
        return str(connection.endpoint) if connection is not None else "L2"
