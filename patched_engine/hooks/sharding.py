"""Records what a sharded engine does, as the hooks of a stock engine do for that."""

from __future__ import annotations

from typing import Any

from patched_engine.hooks.lmcache_async import PrefetchHook
from patched_engine.hooks.lmcache_engine import LookupHook, RetrieveHook, StoreHook
from patched_engine.hooks.wrap import attach, when_imported


def _hook_engine(module: Any) -> None:
    engine = module.ShardedEngine
    attach(engine, "store", StoreHook())
    attach(engine, "retrieve", RetrieveHook())
    attach(engine, "lookup", LookupHook())
    attach(engine, "async_lookup_and_prefetch", PrefetchHook())


def install() -> None:
    """Hook the sharded engine's own methods, as they are imported."""
    when_imported("patched_engine.sharding.engine", _hook_engine)
