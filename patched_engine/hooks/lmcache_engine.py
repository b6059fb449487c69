"""Records what LMCache's engine does on this rank: stores, loads, lookups, by tier.

A call of the engine opens a Work in its thread; the storage manager's hooks, called inside it,
fill in the chunks and bytes that really moved. Names are those of LMCache 0.5.5 and 0.5.6.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from exporters import page_layout as layout
from patched_engine import recorder, telemetry
from patched_engine.hooks import l1
from patched_engine.hooks.work import Work, moved, owned_chunks, prefetched, whole_chunks
from patched_engine.hooks.wrap import FAILED, attach, when_imported
from patched_engine.page import Page
from patched_engine.telemetry import ranges, spans

_C = layout.COUNTER_INDEX
_M = layout.MARK_INDEX
_STORE = layout.KIND_INDEX["store"]
_LOAD = layout.KIND_INDEX["load"]
_LOOKUP = layout.KIND_INDEX["lookup"]
_L1_BACKEND = "LocalCPUBackend"
FINGERPRINT_TOKENS = 512  # two chunks of the usual 256: one key depends on the other


_local = threading.local()  # .work: the innermost Work of this thread


def rank_of(metadata: Any) -> int | None:
    """A worker's rank in LMCache's world; None for the scheduler, which has none."""
    return None if metadata.role == "scheduler" else int(metadata.worker_id)


def error_of(result: Any) -> str:
    """The type of the exception that the observed call raised, or nothing if it returned."""
    if result is not FAILED:
        return ""
    kind = type(sys.exception())  # the hook is told inside the handler
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


class _EngineHook:
    """What store, retrieve and lookup share: a Work in this thread, its range, page and span."""

    kind: str
    request_id_position = sys.maxsize  # a keyword in store and retrieve
    request_id_name = "req_id"

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Work | None:
        page = recorder.current()
        if page is not None:
            work = Work(page.mark(_M[f"{self.kind}_started"]))
        elif spans.outbox is not None or ranges.domain is not None:
            work = Work(time.monotonic_ns())
        else:
            return None
        _local.work = work
        if ranges.domain is not None:
            work.has_range = ranges.push(
                self.kind, self.request_id(args, kwargs), rank_of(args[0].metadata)
            )
        return work

    def after(
        self, token: Work | None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        _local.work = None
        if token is None:
            return
        page = recorder.current()
        try:
            token.end_ns = (
                page.mark(_M[f"{self.kind}_finished"]) if page is not None else time.monotonic_ns()
            )
            self.measure(token, args, kwargs, result)
        finally:
            if token.has_range:
                ranges.pop(token.chunks, token.size_bytes)
        try:
            if spans.outbox is not None:
                spans.finished(self.operation(token, args, kwargs, error_of(result)))
        finally:
            if page is not None:
                self.record(page, token)

    def request_id(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The request that this call is for; empty where the caller names none."""
        named = _argument(args, kwargs, self.request_id_position, self.request_id_name)
        return str(named or "")

    def operation(
        self, work: Work, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: str
    ) -> spans.Operation:
        """What a span is made of."""
        return spans.Operation(
            self.kind,
            work.start_ns,
            work.end_ns,
            rank_of(args[0].metadata),
            self.request_id(args, kwargs),
            work.asked_tokens,
            work.tokens,
            work.chunks,
            work.size_bytes,
            layout.TIERS[work.tier()],
            0 if work.is_counted else work.l2[0],  # the prefetch's span has what it read
            error,
        )

    def measure(
        self, work: Work, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Fill in what the call's arguments and result say."""
        raise NotImplementedError

    def record(self, page: Page, work: Work) -> None:
        """Write the finished work to the page."""
        raise NotImplementedError


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


class StoreHook(_EngineHook):
    """LMCacheEngine.store(self, tokens, hashes, offsets, mask, **kwargs)."""

    kind = "store"

    def measure(
        self, work: Work, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        engine = args[0]
        tokens, work.tokens = _stored_range(args, kwargs)
        work.asked_tokens = work.tokens
        chunk = engine.config.chunk_size
        metadata = engine.metadata
        work.expected_chunks = owned_chunks(
            (tokens - work.tokens) // chunk,
            tokens // chunk,
            metadata.worker_id,
            metadata.world_size,
        )

    def record(self, page: Page, work: Work) -> None:
        page.add(_C["store_calls"])
        page.add(_C["store_tokens"], work.tokens)
        page.add(_C["store_chunks"], work.l1[0])
        page.add(_C["store_bytes"], work.l1[1])
        page.add(_C["store_expected_chunks"], work.expected_chunks)
        page.add(_C["store_nanoseconds"], work.end_ns - work.start_ns)
        page.operation(
            _STORE,
            work.tier(),
            work.start_ns,
            work.end_ns,
            work.tokens,
            work.l1[0],
            work.l1[1],
            work.expected_chunks,
        )


def _stored_range(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """(tokens of the prompt so far, how many of them at its end are to be stored)."""
    tokens = _argument(args, kwargs, 1, "tokens")
    offsets = _argument(args, kwargs, 3, "offsets")
    mask = _argument(args, kwargs, 4, "mask")
    count = len(tokens) if tokens is not None else int(sum(offsets or ()))
    return count, int(mask.sum()) if mask is not None else count


class RetrieveHook(_EngineHook):
    """LMCacheEngine.retrieve(self, tokens, mask, **kwargs) -> bool mask of loaded tokens."""

    kind = "load"

    def measure(
        self, work: Work, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        tokens = _argument(args, kwargs, 1, "tokens")
        mask = _argument(args, kwargs, 2, "mask")
        work.asked_tokens = int(mask.sum()) if mask is not None else len(tokens)
        work.tokens = 0 if result is FAILED else int(result.sum())
        if args[0].async_loading:
            came = prefetched.take(self.request_id(args, kwargs))
            work.l1, work.l2, work.is_counted = came.l1, came.l2, True

    def record(self, page: Page, work: Work) -> None:
        page.add(_C["load_calls"])
        page.add(_C["load_asked_tokens"], work.asked_tokens)
        page.add(_C["load_tokens"], work.tokens)
        if work.tokens < work.asked_tokens:
            page.add(_C["load_short_calls"])
        if not work.is_counted:
            page.add(_C["load_l1_chunks"], work.l1[0])
            page.add(_C["load_l1_bytes"], work.l1[1])
            page.add(_C["load_l2_chunks"], work.l2[0])
            page.add(_C["load_l2_bytes"], work.l2[1])
        page.add(_C["load_nanoseconds"], work.end_ns - work.start_ns)
        page.operation(
            _LOAD,
            work.tier(),
            work.start_ns,
            work.end_ns,
            work.tokens,
            work.chunks,
            work.size_bytes,
            0,
        )


class LookupHook(_EngineHook):
    """LMCacheEngine.lookup(self, tokens, hashes, offsets, search_range, lookup_id, ...) -> tokens
    found."""

    kind = "lookup"
    request_id_position = 5
    request_id_name = "lookup_id"

    def measure(
        self, work: Work, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        tokens = _argument(args, kwargs, 1, "tokens")
        offsets = _argument(args, kwargs, 3, "offsets")
        work.asked_tokens = len(tokens) if tokens is not None else int(sum(offsets or ()))
        work.tokens = 0 if result is FAILED else int(result)
        lookup_id = self.request_id(args, kwargs)
        work.lookup_number = layout.lookup_number(lookup_id) if lookup_id else 0

    def operation(
        self, work: Work, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: str
    ) -> spans.Operation:
        made = super().operation(work, args, kwargs, error)
        return made._replace(chunks=whole_chunks(work.tokens, args[0].config.chunk_size))

    def record(self, page: Page, work: Work) -> None:
        page.add(_C["lookup_calls"])
        page.add(_C["lookup_asked_tokens"], work.asked_tokens)
        page.add(_C["lookup_hit_tokens"], work.tokens)
        page.add(_C["lookup_nanoseconds"], work.end_ns - work.start_ns)
        page.operation(
            _LOOKUP, 0, work.start_ns, work.end_ns, work.tokens, 0, work.lookup_number, 0
        )


class BatchedPutHook:
    """StorageManager.batched_put(self, keys, memory_objs, ...): the copies to CPU memory."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        work: Work | None = getattr(_local, "work", None)
        if work is not None:
            # Before the call: it drops the references that keep the objects' sizes.
            chunks, size_bytes = moved(_argument(args, kwargs, 2, "memory_objs") or ())
            work.l1[0] += chunks
            work.l1[1] += size_bytes

    def after(self, token: None, args: Any, kwargs: Any, result: Any) -> None:
        return None


class BatchedGetHook:
    """StorageManager.batched_get(self, keys, location): what a load brought, by tier."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        return None

    def after(
        self, token: None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        work: Work | None = getattr(_local, "work", None)
        if work is None or result is FAILED or not result:
            return
        location = _argument(args, kwargs, 2, "location")
        into = work.l1 if location == _L1_BACKEND else work.l2
        chunks, size_bytes = moved(result)
        into[0] += chunks
        into[1] += size_bytes


class RemotePutHook:
    """RemoteBackend.batched_submit_put_task(self, keys, memory_objs, ...): what goes to the L2."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        page = recorder.current()
        backend = args[0]
        # Stock drops the PUTs of MLA ranks other than 0 without a word: they moved nothing.
        if page is None or backend.connection is None or backend._mla_worker_id_as0_mode:
            return
        chunks, size_bytes = moved(_argument(args, kwargs, 2, "memory_objs") or ())
        page.add(_C["put_l2_chunks"], chunks)
        page.add(_C["put_l2_bytes"], size_bytes)

    def after(self, token: None, args: Any, kwargs: Any, result: Any) -> None:
        return None


class BuilderHook:
    """LMCacheEngineBuilder.get_or_create(cls, instance_id, config, metadata, ...): who this is."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        config = _argument(args, kwargs, 2, "config")
        metadata = _argument(args, kwargs, 3, "metadata")
        role = str(metadata.role or "worker")
        recorder.identify(
            role, int(metadata.worker_id) if role == "worker" else None, **facts(config, metadata)
        )
        telemetry.start()

    def after(self, token: None, args: Any, kwargs: Any, result: Any) -> None:
        if result is not FAILED:
            recorder.add_facts(
                key_fingerprint=key_fingerprint(result.token_database),
                # As it took effect: the environment may name it, and the model not be MLA.
                save_only_first_rank=bool(result.save_only_first_rank),
            )
            l1.watch(result)


def facts(config: Any, metadata: Any) -> dict[str, object]:
    """What the page's header says of LMCache's configuration; no credentials."""
    known: dict[str, object] = {
        "world_size": int(metadata.world_size),
        "model": str(metadata.model_name),
        "chunk_tokens": int(config.chunk_size),
        "shard_url": recorder.url_without_credentials(str(config.remote_url or "")),
        "async_loading": bool(config.enable_async_loading),
        "timeouts": {
            "lookup_seconds": config.lookup_timeout_ms / 1000,
            "blocking_seconds": float(config.blocking_timeout_secs),
        },
    }
    if metadata.engine_id:
        known["engine_id"] = str(metadata.engine_id)
    return known


def key_fingerprint(token_database: Any) -> str:
    """Hash of the keys of a fixed token list, rank left out: equal where pods share their keys.

    It covers the token hash (and its seed), chunk size, model, dtype and world size.
    """
    digest = hashlib.sha256()
    for start, end, key in token_database.process_tokens(list(range(FINGERPRINT_TOKENS))):
        digest.update(f"{start}:{end}:{key.with_new_worker_id(0).to_string()};".encode())
    return digest.hexdigest()[:16]


def _hook_cache_engine(module: Any) -> None:
    attach(module.LMCacheEngineBuilder, "get_or_create", BuilderHook())
    attach(module.LMCacheEngine, "store", StoreHook())
    attach(module.LMCacheEngine, "retrieve", RetrieveHook())
    attach(module.LMCacheEngine, "lookup", LookupHook())


def install() -> None:
    """Hook the engine, its storage manager and its remote backend as they are imported."""
    when_imported("lmcache.v1.cache_engine", _hook_cache_engine)
    when_imported(
        "lmcache.v1.storage_backend.storage_manager",
        lambda m: (
            attach(m.StorageManager, "batched_put", BatchedPutHook()),
            attach(m.StorageManager, "batched_get", BatchedGetHook()),
        ),
    )
    when_imported(
        "lmcache.v1.storage_backend.remote_backend",
        lambda m: attach(m.RemoteBackend, "batched_submit_put_task", RemotePutHook()),
    )
