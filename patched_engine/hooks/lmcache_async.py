"""Records LMCache's asynchronous loading: lookups of the scheduler, prefetches of each rank.

Both are pending from the request to the answer. An exception of a storage backend means that no
answer is ever sent: the prefetch then stands in the page, and the scheduler's lookup times out.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.hooks.lmcache_engine import moved, prefetched
from patched_engine.hooks.timeouts import timeout_ns
from patched_engine.hooks.wrap import FAILED, attach, observed_coroutine, when_imported
from patched_engine.page import Page

_C = layout.COUNTER_INDEX
# More than a scheduler lets wait at once; beyond it the oldest is taken for abandoned.
MOST_UNDER_WAY = 512


class UnderWay:
    """Pending entries by lookup id, from one call to another that may be in another thread."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: OrderedDict[str, tuple[Page, int, int]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, page: Page, lookup_id: str, key_count: int) -> None:
        """Enter one; a second request under the same id replaces the first."""
        slot = page.submit(self._kind, timeout_ns(page, "lookup_seconds"), key_count, lookup_id)
        start_ns = page.mark(layout.MARK_INDEX["lookup_started"])
        with self._lock:
            replaced = [self._entries.pop(lookup_id, None)]
            self._entries[lookup_id] = (page, slot, start_ns)
            if len(self._entries) > MOST_UNDER_WAY:
                replaced.append(self._entries.popitem(last=False)[1])
        for entry in replaced:
            if entry is not None:
                entry[0].complete(entry[1])

    def end(self, lookup_id: str) -> tuple[Page, int] | None:
        """Take one out: (its page, its start in ns), or None if it is not under way."""
        with self._lock:
            entry = self._entries.pop(lookup_id, None)
        if entry is None:
            return None
        page, slot, start_ns = entry
        page.complete(slot)
        return page, start_ns


# Module, class and tier of the backends whose prefetching GETs are counted.
BACKENDS = (
    ("local_cpu_backend", "LocalCPUBackend", "l1"),
    ("remote_backend", "RemoteBackend", "l2"),
)

_lookups = UnderWay("lookup")
_prefetches = UnderWay("prefetch")


class AsyncLookupHook:
    """LMCacheAsyncLookupClient.lookup(self, token_ids, lookup_id, ...): asks every rank."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        page = recorder.current()
        if page is None:
            return
        tokens = args[1] if len(args) > 1 else kwargs["token_ids"]
        lookup_id = args[2] if len(args) > 2 else kwargs["lookup_id"]
        page.add(_C["lookup_calls"])
        page.add(_C["lookup_asked_tokens"], len(tokens))
        _lookups.begin(page, lookup_id, len(tokens) // args[0].config.chunk_size)

    def after(self, token: None, args: Any, kwargs: Any, result: Any) -> None:
        return None


class AsyncLookupCacheHook:
    """LMCacheAsyncLookupClient.lookup_cache(self, lookup_id): None while under way, then tokens.

    After its timeout it answers 0 and puts the id among the aborted.
    """

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        return None

    def after(
        self, token: None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if not isinstance(result, int) or result < 0:
            return
        lookup_id = args[1] if len(args) > 1 else kwargs["lookup_id"]
        ended = _lookups.end(lookup_id)
        if ended is None:
            return
        page, start_ns = ended
        end_ns = page.mark(layout.MARK_INDEX["lookup_finished"])
        page.add(_C["lookup_hit_tokens"], result)
        page.add(_C["lookup_nanoseconds"], end_ns - start_ns)
        if lookup_id in args[0].aborted_lookups:
            page.add(_C["lookup_timeouts"])
        page.operation(layout.KIND_INDEX["lookup"], 0, start_ns, end_ns, result, 0, 0, 0)


class PrefetchHook:
    """LMCacheEngine.async_lookup_and_prefetch(self, lookup_id, tokens, hashes, ...)."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        page = recorder.current()
        if page is None:
            return
        lookup_id = args[1] if len(args) > 1 else kwargs["lookup_id"]
        hashes = args[3] if len(args) > 3 else kwargs.get("hashes")
        offsets = args[4] if len(args) > 4 else kwargs.get("offsets")
        page.add(_C["lookup_calls"])
        page.add(_C["lookup_asked_tokens"], int(sum(offsets or ())))
        _prefetches.begin(page, lookup_id, len(hashes or ()))

    def after(self, token: None, args: Any, kwargs: Any, result: Any) -> None:
        return None


class AnswerHook:
    """LMCacheAsyncLookupServer.send_response_to_scheduler(self, lookup_id, num_hit_tokens)."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        lookup_id = args[1] if len(args) > 1 else kwargs["lookup_id"]
        found = args[2] if len(args) > 2 else kwargs["num_hit_tokens"]
        ended = _prefetches.end(lookup_id)
        if ended is None:
            return
        page, start_ns = ended
        end_ns = page.mark(layout.MARK_INDEX["lookup_finished"])
        page.add(_C["lookup_hit_tokens"], int(found))
        page.add(_C["lookup_nanoseconds"], end_ns - start_ns)
        page.operation(layout.KIND_INDEX["lookup"], 0, start_ns, end_ns, int(found), 0, 0, 0)

    def after(self, token: None, args: Any, kwargs: Any, result: Any) -> None:
        return None


class PrefetchGetHook:
    """batched_get_non_blocking(self, lookup_id, keys, ...) of one backend: what it brought."""

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._chunks = _C[f"load_{tier}_chunks"]
        self._bytes = _C[f"load_{tier}_bytes"]

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        return None

    def after(
        self, token: None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        page = recorder.current()
        if page is None or result is FAILED or not result:
            return
        lookup_id = args[1] if len(args) > 1 else kwargs["lookup_id"]
        chunks, size_bytes = moved(result)
        page.add(self._chunks, chunks)
        page.add(self._bytes, size_bytes)
        prefetched.add(str(lookup_id), self._tier, chunks, size_bytes)


def _hook_backend(module: Any, backend: str, tier: str) -> None:
    attach(
        getattr(module, backend),
        "batched_get_non_blocking",
        PrefetchGetHook(tier),
        observed_coroutine,
    )


def _hook_client(module: Any) -> None:
    attach(module.LMCacheAsyncLookupClient, "lookup", AsyncLookupHook())
    attach(module.LMCacheAsyncLookupClient, "lookup_cache", AsyncLookupCacheHook())
    attach(module.LMCacheAsyncLookupServer, "send_response_to_scheduler", AnswerHook())


def install() -> None:
    """Hook the asynchronous lookup client and server, and the backends' prefetching GETs."""
    when_imported("lmcache.v1.lookup_client.lmcache_async_lookup_client", _hook_client)
    when_imported(
        "lmcache.v1.cache_engine",
        lambda m: attach(m.LMCacheEngine, "async_lookup_and_prefetch", PrefetchHook()),
    )
    for module, backend, tier in BACKENDS:
        when_imported(
            f"lmcache.v1.storage_backend.{module}",
            functools.partial(_hook_backend, backend=backend, tier=tier),
        )
