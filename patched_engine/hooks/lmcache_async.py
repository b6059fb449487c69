"""Records LMCache's asynchronous loading: lookups of the scheduler, prefetches of each rank.

Both are pending from the request to the answer. An exception of a storage backend means that no
answer is ever sent: the prefetch then stands in the page, and the scheduler's lookup times out.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.hooks.lmcache_engine import rank_of
from patched_engine.hooks.timeouts import timeout_ns
from patched_engine.hooks.work import moved, prefetched, whole_chunks
from patched_engine.hooks.wrap import FAILED, attach, observed_coroutine, when_imported
from patched_engine.page import Page
from patched_engine.telemetry import spans

_C = layout.COUNTER_INDEX
# More than a scheduler lets wait at once; beyond it the oldest is taken for abandoned.
MOST_UNDER_WAY = layout.PENDING_COUNT // 2


class Begun(NamedTuple):
    """One lookup or prefetch that was asked for; page and slot where the page has it."""

    page: Page | None
    slot: int
    start_ns: int
    rank: int | None
    asked_tokens: int
    chunk_tokens: int


class UnderWay:
    """Pending entries by lookup id, from one call to another that may be in another thread."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: OrderedDict[str, Begun] = OrderedDict()
        self._lock = threading.Lock()

    def begin(
        self,
        page: Page | None,
        lookup_id: str,
        key_count: int,
        rank: int | None,
        asked_tokens: int,
        chunk_tokens: int,
    ) -> None:
        """Enter one; a second request under the same id replaces the first."""
        slot = -1
        if page is not None:
            slot = page.submit(self._kind, timeout_ns(page, "lookup_seconds"), key_count, lookup_id)
            start_ns = page.mark(layout.MARK_INDEX["lookup_started"])
        elif spans.outbox is not None:
            start_ns = time.monotonic_ns()
        else:
            return
        begun = Begun(page, slot, start_ns, rank, asked_tokens, chunk_tokens)
        with self._lock:
            replaced = [self._entries.pop(lookup_id, None)]
            self._entries[lookup_id] = begun
            if len(self._entries) > MOST_UNDER_WAY:
                replaced.append(self._entries.popitem(last=False)[1])
        for entry in replaced:
            if entry is not None and entry.page is not None:
                entry.page.complete(entry.slot)

    def end(self, lookup_id: str, tokens: int, timed_out: bool = False) -> Page | None:
        """Take one out and record what was found; its page, if it was under way and has one."""
        begun = self.drop(lookup_id)
        if begun is None:
            return None
        page, start_ns = begun.page, begun.start_ns
        if page is not None:
            end_ns = page.mark(layout.MARK_INDEX["lookup_finished"])
        else:
            end_ns = time.monotonic_ns()
        try:
            if spans.outbox is not None:
                spans.finished(self._operation(lookup_id, begun, end_ns, tokens, timed_out))
        finally:
            if page is not None:
                page.add(_C["lookup_hit_tokens"], tokens)
                page.add(_C["lookup_nanoseconds"], end_ns - start_ns)
                number = layout.lookup_number(lookup_id)
                page.operation(
                    layout.KIND_INDEX["lookup"], 0, start_ns, end_ns, tokens, 0, number, 0
                )
                limit_ns = timeout_ns(page, "lookup_seconds")
                if self._kind == "prefetch" and 0 < limit_ns < end_ns - start_ns:
                    page.add(_C["prefetch_late_calls"])  # its request was given up meanwhile
        return page

    def drop(self, lookup_id: str) -> Begun | None:
        """Take one out of which nothing was found out, if it is under way."""
        with self._lock:
            begun = self._entries.pop(lookup_id, None)
        if begun is not None and begun.page is not None:
            begun.page.complete(begun.slot)
        return begun

    def _operation(
        self, lookup_id: str, begun: Begun, end_ns: int, tokens: int, timed_out: bool
    ) -> spans.Operation:
        chunks, size_bytes, tier, l2_chunks = whole_chunks(tokens, begun.chunk_tokens), 0, 0, 0
        if self._kind == "prefetch":
            came = prefetched.look(lookup_id)
            chunks, size_bytes, tier, l2_chunks = (
                came.chunks,
                came.size_bytes,
                came.tier(),
                came.l2[0],
            )
        return spans.Operation(
            self._kind,
            begun.start_ns,
            end_ns,
            begun.rank,
            lookup_id,
            begun.asked_tokens,
            tokens,
            chunks,
            size_bytes,
            layout.TIERS[tier],
            l2_chunks,
            "timeout" if timed_out else "",
        )


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
        asked = len(args[1] if len(args) > 1 else kwargs["token_ids"])
        lookup_id = args[2] if len(args) > 2 else kwargs["lookup_id"]
        if page is not None:
            page.add(_C["lookup_calls"])
            page.add(_C["lookup_asked_tokens"], asked)
        chunk = args[0].config.chunk_size
        _lookups.begin(page, lookup_id, asked // chunk, None, asked, chunk)

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
        timed_out = lookup_id in args[0].aborted_lookups
        page = _lookups.end(lookup_id, result, timed_out)
        if page is not None and timed_out:
            page.add(_C["lookup_timeouts"])


class ClearLookupHook:
    """LMCacheAsyncLookupClient.clear_lookup_status(self, lookup_id): done with, or cancelled."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        _lookups.drop(args[1] if len(args) > 1 else kwargs["lookup_id"])

    def after(self, token: None, args: Any, kwargs: Any, result: Any) -> None:
        return None


class PrefetchHook:
    """LMCacheEngine.async_lookup_and_prefetch(self, lookup_id, tokens, hashes, ...)."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        page = recorder.current()
        engine = args[0]
        lookup_id = args[1] if len(args) > 1 else kwargs["lookup_id"]
        hashes = args[3] if len(args) > 3 else kwargs.get("hashes")
        offsets = args[4] if len(args) > 4 else kwargs.get("offsets")
        asked = int(sum(offsets or ()))
        if page is not None:
            page.add(_C["lookup_calls"])
            page.add(_C["lookup_asked_tokens"], asked)
        _prefetches.begin(
            page,
            lookup_id,
            len(hashes or ()),
            rank_of(engine.metadata),
            asked,
            engine.config.chunk_size,
        )

    def after(self, token: None, args: Any, kwargs: Any, result: Any) -> None:
        return None


class AnswerHook:
    """LMCacheAsyncLookupServer.send_response_to_scheduler(self, lookup_id, num_hit_tokens)."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        lookup_id = args[1] if len(args) > 1 else kwargs["lookup_id"]
        found = args[2] if len(args) > 2 else kwargs["num_hit_tokens"]
        _prefetches.end(lookup_id, int(found))

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
        if result is FAILED or not result:
            return
        if page is None and spans.outbox is None:
            return
        lookup_id = args[1] if len(args) > 1 else kwargs["lookup_id"]
        chunks, size_bytes = moved(result)
        if page is not None:
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
    attach(module.LMCacheAsyncLookupClient, "clear_lookup_status", ClearLookupHook())
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
