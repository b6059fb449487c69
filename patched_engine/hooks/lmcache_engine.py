"""Records what LMCache's engine does on this rank: stores, loads, lookups, by tier.

A call of the engine opens a Work in its thread; the storage manager's hooks, called inside it,
fill in the chunks and bytes that really moved. Names are those of LMCache 0.5.5 and 0.5.6.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.hooks.wrap import FAILED, attach, when_imported

_C = layout.COUNTER_INDEX
_M = layout.MARK_INDEX
_STORE = layout.KIND_INDEX["store"]
_LOAD = layout.KIND_INDEX["load"]
_LOOKUP = layout.KIND_INDEX["lookup"]
_L1_BACKEND = "LocalCPUBackend"
FINGERPRINT_TOKENS = 512  # two chunks of the usual 256: one key depends on the other


class Work:
    """One engine call under way in this thread."""

    __slots__ = ("asked_tokens", "expected_chunks", "l1", "l2", "start_ns")

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.asked_tokens = 0
        self.expected_chunks = 0
        self.l1 = [0, 0]  # chunks, bytes
        self.l2 = [0, 0]

    def tier(self) -> int:
        """The tier code of what moved."""
        if self.l1[0] and self.l2[0]:
            return layout.TIER_INDEX["mixed"]
        if self.l2[0]:
            return layout.TIER_INDEX["l2"]
        return layout.TIER_INDEX["l1"] if self.l1[0] else layout.TIER_INDEX[""]


class Prefetched:
    """What was prefetched for each request, until its load is reported. Bounded: a request that
    was aborted never collects its own."""

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._by_request: OrderedDict[str, Work] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, request_id: str, tier: str, chunks: int, size_bytes: int) -> None:
        """Add what one backend brought ("l1" or "l2")."""
        with self._lock:
            work = self._by_request.setdefault(request_id, Work(0))
            into = work.l1 if tier == "l1" else work.l2
            into[0] += chunks
            into[1] += size_bytes
            if len(self._by_request) > self._most:
                self._by_request.popitem(last=False)

    def take(self, request_id: str) -> Work:
        """What came for this request; nothing, if nothing did."""
        with self._lock:
            return self._by_request.pop(request_id, None) or Work(0)


prefetched = Prefetched()
_local = threading.local()  # .work: the innermost Work of this thread


def owned_chunks(first: int, last: int, rank: int, world_size: int) -> int:
    """How many chunks c of [first, last) have c mod W = rank: the rank's expected share."""
    if last <= first or world_size <= 0:
        return 0
    return (last - 1 - rank) // world_size - (first - 1 - rank) // world_size


def moved(objects: Sequence[Any]) -> tuple[int, int]:
    """Chunks and bytes of a list of memory objects; None entries moved nothing."""
    chunks = size_bytes = 0
    for item in objects:
        if item is not None:
            chunks += 1
            size_bytes += item.get_size()
    return chunks, size_bytes


class _EngineHook:
    """What store, retrieve and lookup share: a Work in this thread, and its marks."""

    started: int

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Work | None:
        page = recorder.current()
        if page is None:
            return None
        work = Work(page.mark(self.started))
        _local.work = work
        return work

    def after(
        self, token: Work | None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        _local.work = None
        page = recorder.current()
        if page is not None and token is not None:
            self.record(page, token, args, kwargs, result)

    def record(
        self,
        page: Any,
        work: Work,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        raise NotImplementedError


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


class StoreHook(_EngineHook):
    """LMCacheEngine.store(self, tokens, hashes, offsets, mask, **kwargs)."""

    started = _M["store_started"]

    def record(
        self, page: Any, work: Work, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        end_ns = page.mark(_M["store_finished"])
        engine = args[0]
        tokens, new_tokens = _stored_range(args, kwargs)
        chunk = engine.config.chunk_size
        metadata = engine.metadata
        expected = owned_chunks(
            (tokens - new_tokens) // chunk, tokens // chunk, metadata.worker_id, metadata.world_size
        )
        page.add(_C["store_calls"])
        page.add(_C["store_tokens"], new_tokens)
        page.add(_C["store_chunks"], work.l1[0])
        page.add(_C["store_bytes"], work.l1[1])
        page.add(_C["store_expected_chunks"], expected)
        page.add(_C["store_nanoseconds"], end_ns - work.start_ns)
        page.operation(_STORE, work.tier(), work.start_ns, end_ns, new_tokens, *work.l1, expected)


def _stored_range(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """(tokens of the prompt so far, how many of them at its end are to be stored)."""
    tokens = _argument(args, kwargs, 1, "tokens")
    offsets = _argument(args, kwargs, 3, "offsets")
    mask = _argument(args, kwargs, 4, "mask")
    count = len(tokens) if tokens is not None else int(sum(offsets or ()))
    return count, int(mask.sum()) if mask is not None else count


class RetrieveHook(_EngineHook):
    """LMCacheEngine.retrieve(self, tokens, mask, **kwargs) -> bool mask of loaded tokens."""

    started = _M["load_started"]

    def record(
        self, page: Any, work: Work, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        end_ns = page.mark(_M["load_finished"])
        tokens = _argument(args, kwargs, 1, "tokens")
        mask = _argument(args, kwargs, 2, "mask")
        asked = int(mask.sum()) if mask is not None else len(tokens)
        loaded = 0 if result is FAILED else int(result.sum())
        page.add(_C["load_calls"])
        page.add(_C["load_asked_tokens"], asked)
        page.add(_C["load_tokens"], loaded)
        if args[0].async_loading:  # counted as it came, in the background
            came = prefetched.take(str(kwargs.get("req_id", "")))
            work.l1, work.l2 = came.l1, came.l2
        else:
            page.add(_C["load_l1_chunks"], work.l1[0])
            page.add(_C["load_l1_bytes"], work.l1[1])
            page.add(_C["load_l2_chunks"], work.l2[0])
            page.add(_C["load_l2_bytes"], work.l2[1])
        page.add(_C["load_nanoseconds"], end_ns - work.start_ns)
        page.operation(
            _LOAD,
            work.tier(),
            work.start_ns,
            end_ns,
            loaded,
            work.l1[0] + work.l2[0],
            work.l1[1] + work.l2[1],
            0,
        )


class LookupHook(_EngineHook):
    """LMCacheEngine.lookup(self, tokens, hashes, offsets, ...) -> tokens found."""

    started = _M["lookup_started"]

    def record(
        self, page: Any, work: Work, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        end_ns = page.mark(_M["lookup_finished"])
        tokens = _argument(args, kwargs, 1, "tokens")
        offsets = _argument(args, kwargs, 3, "offsets")
        asked = len(tokens) if tokens is not None else int(sum(offsets or ()))
        found = 0 if result is FAILED else int(result)
        page.add(_C["lookup_calls"])
        page.add(_C["lookup_asked_tokens"], asked)
        page.add(_C["lookup_hit_tokens"], found)
        page.add(_C["lookup_nanoseconds"], end_ns - work.start_ns)
        page.operation(_LOOKUP, 0, work.start_ns, end_ns, found, 0, 0, 0)


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

    def after(self, token: None, args: Any, kwargs: Any, result: Any) -> None:
        if result is not FAILED:
            recorder.add_facts(key_fingerprint=key_fingerprint(result.token_database))


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
