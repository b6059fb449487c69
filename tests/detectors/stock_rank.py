"""One rank of a stock LMCache engine under the real hooks, with one real fault done to it.

    python -m tests.detectors.stock_rank PORT FAULT

Run as a program. It stores a prompt, prints "stored" and, once a line comes on standard input, does
the fault: prints "begun" as it begins, and then stands still for as long as its tester lets it. It
prints "struck" where the stock client loses a completion by itself besides.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import redis

import patched_engine
from lab.losses import Losses
from patched_engine import recorder
from tests.kv_connector import kv_connector

CHUNK_TOKENS = 256
CHUNKS = 8
LAYERS = 2
HEAD_SIZE = 64
RANK = 1
WORLD_SIZE = 2
LOOKUP_SECONDS = 0.8
BLOCKING_SECONDS = 2
DRAIN_SECONDS = 5.0


def build(port: int, is_async: bool) -> Any:
    """A real engine with L1 and the native RESP client to a real shard."""
    import torch
    from lmcache.v1.cache_engine import LMCacheEngineBuilder
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata

    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK_TOKENS,
        local_cpu=True,
        max_local_cpu_size=0.1,
        remote_url=f"resp://127.0.0.1:{port}",
        enable_async_loading=is_async,
        blocking_timeout_secs=BLOCKING_SECONDS,
        lookup_timeout_ms=int(LOOKUP_SECONDS * 1000),
        extra_config={
            "save_chunk_meta": False,
            "resp_num_threads": 2,
            "save_only_first_rank": False,
            "remote_enable_mla_worker_id_as0": False,
        },
    )
    metadata = LMCacheMetadata(
        # As long as real ones: the begin of a key that the table has room for is then not enough.
        model_name="organisation/a-model-with-a-name-as-long-as-real-ones-have",
        world_size=WORLD_SIZE,
        local_world_size=WORLD_SIZE,
        worker_id=RANK,
        local_worker_id=RANK,
        kv_dtype=torch.bfloat16,
        kv_shape=(LAYERS, 1, CHUNK_TOKENS, 1, HEAD_SIZE),
        use_mla=True,
        role="worker",
        chunk_size=CHUNK_TOKENS,
        engine_id="stock",
        kv_connector_extra_config={"lmcache_rpc_port": 0},
    )
    engine = LMCacheEngineBuilder.get_or_create(
        "engine", config, metadata, kv_connector(), lambda *_: None, lambda *_: None
    )
    engine.post_init(**({"async_lookup_server": NoScheduler()} if is_async else {}))
    return engine


class NoScheduler:
    """Stands for the way back to a scheduler, of which this rank has none."""

    def send_response_to_scheduler(self, lookup_id: str, num_hit_tokens: int) -> None:
        raise AssertionError("a prefetch that failed was answered after all")


class LateReturn:
    """The native client, the first EXISTS of which returns late to its caller: when its completion
    was drained, before the caller has registered who waits for it. (2 ms do it, but on a busy
    machine the draining thread comes later.)"""

    def __init__(self, native: Any, losses: Losses) -> None:
        self._native = native
        self._losses = losses
        self._armed = True
        self._drained = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def submit_batch_exists(self, keys: list[str]) -> int:
        if not self._armed:
            return int(self._native.submit_batch_exists(keys))
        self._armed, self._losses.is_forced = False, True
        future_id: int = self._native.submit_batch_exists(keys)
        self._drained.wait(DRAIN_SECONDS)
        time.sleep(0.002)  # from the drained items to the entry that is not there yet
        self._losses.is_forced = False
        return future_id

    def drain_completions(self) -> Any:
        items = self._native.drain_completions()
        if items and self._losses.is_forced:
            self._drained.set()
        return items


def after_exists(client: Any, action: Callable[[], None]) -> None:
    """Have `action` done once the load's own EXISTS has found every chunk, before its GETs."""
    exists = client.batch_exists_sync

    def exists_then_act(asked: list[str]) -> list[bool]:
        answer: list[bool] = exists(asked)
        assert all(answer)
        action()
        return answer

    client.batch_exists_sync = exists_then_act


def delete(port: int, keys: list[str], own: list[str]) -> None:
    """A key that is neither the first of the batch nor the last."""
    with redis.Redis(port=port) as server:
        server.delete(keys[5])


def evict(port: int, keys: list[str], own: list[str]) -> None:
    """Other chunks come in at a shard that is full, until one of these has made room."""
    with redis.Redis(port=port) as server:
        server.config_set("maxmemory-policy", "allkeys-lru")
        server.config_set("maxmemory", server.info("memory")["used_memory"] + (32 << 20))
        number = 0
        while server.exists(*keys) == len(keys):
            server.set(f"other{number}", b"x" * (1 << 18))
            number += 1


def cut(port: int, keys: list[str], own: list[str]) -> None:
    """The server closes the rank's connections."""
    with redis.Redis(port=port) as server:
        for address in own:
            server.execute_command("CLIENT", "KILL", address)


async def fail(*args: Any, **kwargs: Any) -> None:
    """A storage backend that raises, as one of a plugin may."""
    raise RuntimeError("no memory for the chunk")


def main() -> None:
    port, fault = int(sys.argv[1]), sys.argv[2]
    # The stock client loses completions by itself when its event loop runs between a submit and the
    # line after it: let threads change places seldom, so that the fault is the one asked for.
    sys.setswitchinterval(1.0)
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    assert patched_engine.install()
    import torch

    engine = build(port, is_async=fault == "no-answer")
    length = CHUNKS * CHUNK_TOKENS
    tokens = list(range(length))
    kv = torch.randn(LAYERS, length, HEAD_SIZE).to(torch.bfloat16)
    engine.store(tokens, kvcaches=kv, req_id="r")
    server = redis.Redis(port=port)
    while server.dbsize() < CHUNKS:
        time.sleep(0.02)
    keys = [key.to_string() for _, _, key in engine.token_database.process_tokens(tokens)]
    client = engine.storage_manager.storage_backends["RemoteBackend"].connection._connector.client
    losses = Losses(lambda is_forced: None if is_forced else print("struck", flush=True))
    losses.watch(client)
    own = [c["addr"] for c in server.client_list() if c["name"] != "tester"]
    print("stored", flush=True)
    sys.stdin.readline()
    engine.storage_manager.clear(["LocalCPUBackend"])

    def load() -> None:
        engine.retrieve(tokens, kvcaches=torch.zeros_like(kv), req_id="a")

    def lookup() -> None:
        engine.lookup(tokens=tokens, lookup_id="a", pin=True)

    def prefetch() -> None:
        engine.async_lookup_and_prefetch(lookup_id="a", tokens=tokens, pin=True)

    work = load
    if fault == "no-answer":
        backend = engine.storage_manager.storage_backends["RemoteBackend"]
        backend.batched_get_non_blocking = fail
        work = prefetch
    elif fault == "lost-completion":
        client._client = LateReturn(client._client, losses)
        work = lookup
    elif fault != "none":
        actions = {"missing-key": delete, "evicted": evict, "cut-connections": cut}
        after_exists(client, functools.partial(actions[fault], port, keys, own))
    threading.Thread(target=work, daemon=True, name="lookup-server-thread").start()
    print("begun", flush=True)
    print(json.dumps(recorder.status()["faults"]), flush=True)
    time.sleep(120)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
    os._exit(1)  # LMCache's threads would hold a failed run open
