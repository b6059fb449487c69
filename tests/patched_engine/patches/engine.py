"""A real LMCache engine of one rank for tests of the patches, in the process that asks for it."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import patched_engine
from tests.kv_connector import kv_connector

CHUNK_TOKENS = 256
LAYERS = 2
HEAD_SIZE = 64
CHUNKS = 8
LENGTH = CHUNKS * CHUNK_TOKENS
CHUNK_BYTES = LAYERS * CHUNK_TOKENS * HEAD_SIZE * 2
BLOCKING_SECONDS = 2
LOOKUP_SECONDS = 1.5
STUCK_EXIT = 75
STUCK_SECONDS = 15.0
BUSY_SECONDS = 150.0  # on a machine that others use


class Answers:
    """The way back to a scheduler: what a rank answered, and when."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self._came = threading.Condition()

    def send_response_to_scheduler(self, lookup_id: str, num_hit_tokens: int) -> None:
        with self._came:
            self.tokens[lookup_id] = num_hit_tokens
            self._came.notify_all()

    def wait(self, lookup_id: str, seconds: float) -> int | None:
        with self._came:
            self._came.wait_for(lambda: lookup_id in self.tokens, seconds)
            return self.tokens.get(lookup_id)


def build(
    url: str,
    *,
    rank: int = 0,
    world_size: int = 1,
    is_async: bool = False,
    l1_bytes: int = 64 << 20,
    extra: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    name: str = "",
) -> tuple[Any, Answers]:
    """The engine, and where its asynchronous lookups are answered. A None in `extra` leaves that
    one out."""
    import torch
    from lmcache.v1.cache_engine import LMCacheEngineBuilder
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata

    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK_TOKENS,
        local_cpu=True,
        max_local_cpu_size=l1_bytes / (1 << 30),
        remote_url=url,
        enable_async_loading=is_async,
        blocking_timeout_secs=BLOCKING_SECONDS,
        lookup_timeout_ms=int(LOOKUP_SECONDS * 1000),
        extra_config={
            name: value
            for name, value in {
                "save_chunk_meta": False,
                "resp_num_threads": 2,
                "save_only_first_rank": False,
                **(extra or {}),
            }.items()
            if value is not None
        },
        **(settings or {}),
    )
    metadata = LMCacheMetadata(
        model_name="organisation/a-model",
        world_size=world_size,
        local_world_size=world_size,
        worker_id=rank,
        local_worker_id=rank,
        kv_dtype=torch.bfloat16,
        kv_shape=(LAYERS, 1, CHUNK_TOKENS, 1, HEAD_SIZE),
        use_mla=True,
        role="worker",
        chunk_size=CHUNK_TOKENS,
        engine_id=f"patches-{rank}",
        kv_connector_extra_config={"lmcache_rpc_port": 0},
    )
    answers = Answers()
    engine = LMCacheEngineBuilder.get_or_create(
        name or f"engine-{rank}", config, metadata, kv_connector(), lambda *_: None, lambda *_: None
    )
    engine.post_init(**({"async_lookup_server": answers} if is_async else {}))
    return engine, answers


def l2(engine: Any) -> Any:
    return engine.storage_manager.storage_backends["RemoteBackend"]


def l1(engine: Any) -> Any:
    return engine.storage_manager.storage_backends["LocalCPUBackend"]


def keys_of(engine: Any, tokens: list[int]) -> list[Any]:
    return [key for _, _, key in engine.token_database.process_tokens(tokens)]


def before_gets(engine: Any, action: Callable[[], None]) -> None:
    """Have `action` done once, after the load has found its chunks and before it gets them."""
    manager = engine.storage_manager
    find = manager.get_block_mapping

    def find_then_act(chunk_infos: Any) -> Any:
        mapping = find(chunk_infos)
        manager.get_block_mapping = find
        action()
        return mapping

    manager.get_block_mapping = find_then_act


def retrieve(engine: Any, tokens: list[int], kv: Any, request: str) -> dict[str, Any]:
    """Load a prompt: tokens loaded, seconds, whether these bytes and no others are right."""
    import torch

    into = torch.zeros_like(kv)
    begun = time.monotonic()
    loaded = int(engine.retrieve(tokens, kvcaches=into, req_id=request).sum())
    return {
        "loaded": loaded,
        "seconds": time.monotonic() - begun,
        "equal": bool(torch.equal(into[:, :loaded], kv[:, :loaded])),
        "rest_untouched": bool((into[:, loaded:] == 0).all()),
    }


def l1_is_right(engine: Any, tokens: list[int], kv: Any) -> bool:
    """Whether every chunk that L1 holds of this prompt has the prompt's bytes."""
    import torch

    held = l1(engine).hot_cache
    for index, key in enumerate(keys_of(engine, tokens)):
        if key in held:
            start = index * CHUNK_TOKENS
            if not torch.equal(held[key].tensor[0], kv[:, start : start + CHUNK_TOKENS]):
                return False
    return True


def run(main: Callable[[list[str]], dict[str, Any]], stuck_seconds: float = STUCK_SECONDS) -> None:
    """As a program: install, run, print one JSON object, and leave whatever threads there are."""
    sys.setswitchinterval(1e-4)  # the stock client loses completions more seldom
    watchdog = threading.Timer(stuck_seconds, os._exit, (STUCK_EXIT,))
    watchdog.daemon = True
    watchdog.start()
    code = 1
    try:
        patched_engine.install()
        result = main(sys.argv[1:])
        result["patches"] = patched_engine.status()["patches"]
        result["faults"] = patched_engine.status()["faults"]
        print(json.dumps(result), flush=True)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
