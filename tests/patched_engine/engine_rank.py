"""One rank of a real LMCache engine under the hooks; run as a program by test_lmcache_hooks.

It stores a prompt, loads it from both tiers and then asks for a key that is gone, which stock
LMCache's native client never answers. Prints what it did, and stands still with that GET pending.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import patched_engine
from tests.kv_connector import kv_connector

CHUNK_TOKENS = 256
LAYERS = 2
HEAD_SIZE = 64
CHUNKS = 7
TAIL_TOKENS = 37
RANK = 1
WORLD_SIZE = 2
# The stock client loses a completion now and then (upstream #5547) and its caller waits for ever.
STUCK_SECONDS = 25.0
STUCK_EXIT = 75
CHUNK_BYTES = LAYERS * CHUNK_TOKENS * HEAD_SIZE * 2


def main() -> None:
    port = int(sys.argv[1])
    sys.setswitchinterval(1e-4)  # rarer: the event loop's thread seldom overtakes the caller
    watchdog = threading.Timer(STUCK_SECONDS, os._exit, (STUCK_EXIT,))
    watchdog.daemon = True
    watchdog.start()
    assert patched_engine.install()
    import redis
    import torch
    from lmcache.v1.cache_engine import LMCacheEngineBuilder
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata

    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK_TOKENS,
        local_cpu=True,
        max_local_cpu_size=0.1,
        remote_url=f"resp://127.0.0.1:{port}",
        blocking_timeout_secs=7,
        lookup_timeout_ms=2500,
        extra_config={
            "save_chunk_meta": False,
            "resp_num_threads": 2,
            "save_only_first_rank": False,
            "remote_enable_mla_worker_id_as0": False,
        },
    )
    metadata = LMCacheMetadata(
        model_name="m",
        world_size=WORLD_SIZE,
        local_world_size=WORLD_SIZE,
        worker_id=RANK,
        local_worker_id=RANK,
        kv_dtype=torch.bfloat16,
        kv_shape=(LAYERS, 1, CHUNK_TOKENS, 1, HEAD_SIZE),
        use_mla=True,
        role="worker",
        chunk_size=CHUNK_TOKENS,
        engine_id="engine-under-test",
        kv_connector_extra_config={"lmcache_rpc_port": 0},
    )
    engine = LMCacheEngineBuilder.get_or_create(
        "engine", config, metadata, kv_connector(), lambda *_: None, lambda *_: None
    )
    engine.post_init()
    length = CHUNKS * CHUNK_TOKENS + TAIL_TOKENS
    tokens = list(range(length))
    kv = torch.randn(LAYERS, length, HEAD_SIZE).to(torch.bfloat16)
    mask = torch.ones(length, dtype=torch.bool)
    mask[: 2 * CHUNK_TOKENS] = False  # as in the second step of a chunked prefill
    engine.store(tokens[: 2 * CHUNK_TOKENS], kvcaches=kv, req_id="r")
    engine.store(tokens, mask=mask, kvcaches=kv, req_id="r")
    server = redis.Redis(port=port)
    while server.dbsize() < CHUNKS:
        time.sleep(0.02)
    found = engine.lookup(tokens=tokens, lookup_id="a", pin=True)
    from_l1 = int(engine.retrieve(tokens, kvcaches=torch.zeros_like(kv), req_id="a").sum())
    engine.lookup_unpin("a")
    engine.storage_manager.clear(["LocalCPUBackend"])
    into = torch.zeros_like(kv)
    from_l2 = int(engine.retrieve(tokens, kvcaches=into, req_id="b").sum())
    full = CHUNKS * CHUNK_TOKENS
    watchdog.cancel()
    print(
        json.dumps(
            {
                "found": found,
                "from_l1": from_l1,
                "from_l2": from_l2,
                "bytes_equal": bool(torch.equal(into[:, :full], kv[:, :full])),
                "faults": patched_engine.status()["faults"],
            }
        ),
        flush=True,
    )
    keys = [key for _, _, key in engine.token_database.process_tokens(tokens)]
    server.delete(*[key.to_string() for key in keys])
    client = engine.storage_manager.storage_backends["RemoteBackend"].connection._connector.client
    memory_obj = engine.storage_manager.allocate(metadata.get_shapes(), metadata.get_dtypes())
    threading.Thread(
        target=client.get_sync,
        args=(keys[0].to_string(), memoryview(memory_obj.byte_array)),
        daemon=True,
    ).start()
    print(keys[0].to_string(), flush=True)
    time.sleep(60)


if __name__ == "__main__":
    try:
        main()
    finally:
        os._exit(1)  # LMCache's threads would hold a failed run open
