"""What a load releases is not released again when its request is unpinned.

0.5.5: a synchronous load unpins what its lookup pinned, and `lookup_unpin` then unpins it again. In
asynchronous mode, both versions: a load leaves its prefetch among the finished events, where
`lookup_unpin` frees the objects a second time; on 0.5.5 the next L1 hit of the prompt then finds an
invalidated object and ends the engine. The sharded engine does without either.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from patched_engine.patches.patch import Patch, require


def check(module: Any) -> None:
    """A load must unpin by itself, and `lookup_unpin` must come after it."""
    engine = module.LMCacheEngine
    require(engine, "retrieve", {"unpin", "is_pinned", "ref_count_down"}, ("tokens", "mask"))
    require(engine, "lookup_unpin", {"lookup_pins", "cleanup_memory_objs"}, ("lookup_id",))
    require(engine, "_async_process_tokens_internal", {"get_event_future"})


def apply(module: Any) -> None:
    """After a load, forget what it has given back."""
    from patched_engine.patches.installing import lmcache_version

    stock = module.LMCacheEngine.retrieve
    sync_unpins = lmcache_version() == "0.5.5"

    @functools.wraps(stock)
    def retrieve(self: Any, tokens: Any, mask: Any = None, **kwargs: Any) -> Any:
        found = stock(self, tokens, mask, **kwargs)
        request_id = kwargs.get("req_id")
        if request_id is None:
            return found
        if self.async_loading:
            _forget_prefetch(self, request_id, _loaded_chunks(self, tokens, mask, found))
        elif sync_unpins:
            _forget_pins(self, request_id, _loaded_chunks(self, tokens, mask, found))
        return found

    module.LMCacheEngine.retrieve = retrieve


def _loaded_chunks(engine: Any, tokens: Any, mask: Any, found: Any) -> range:
    """Which chunks of the prompt were loaded: behind those that the mask leaves out."""
    chunk_tokens = engine.config.chunk_size
    skipped = (len(tokens) - int(mask.sum())) // chunk_tokens if mask is not None else 0
    return range(skipped, skipped + int(found.sum()) // chunk_tokens)


def _forget_prefetch(engine: Any, request_id: str, loaded: range) -> None:
    """Take the prefetch out; of the chunks that were not loaded it has kept the pins."""
    from lmcache.v1.event_manager import EventStatus, EventType

    events = engine.event_manager
    if events.get_event_status(EventType.LOADING, request_id) is not EventStatus.DONE:
        return
    prefetched = events.pop_event(EventType.LOADING, request_id)
    if prefetched.exception() is not None:
        return
    objects = [memory_obj for tier in prefetched.result() for _, memory_obj in tier]
    for at, memory_obj in enumerate(objects):
        if at not in loaded and memory_obj.is_pinned:
            memory_obj.unpin()


def _forget_pins(engine: Any, request_id: str, loaded: range) -> None:
    """Of the pinned chunks, in order over all tiers, the loaded ones are unpinned already."""
    pins = engine.lookup_pins.get(request_id)
    first = 0
    for location, keys in (pins or {}).items():
        pins[location] = [key for at, key in enumerate(keys, first) if at not in loaded]
        first += len(keys)


PATCH: Final = Patch(
    name="release-once",
    upstream="LMCache, no number: double unpin (0.5.5) and double free (async) after a load",
    summary="what a load has released is not released again when its request is unpinned",
    module="lmcache.v1.cache_engine",
    touches=("LMCacheEngine.retrieve",),
    check=check,
    apply=apply,
)
