"""A real LMCache engine and its scheduler's lookup client in one process, to be traced.

Run as a program: arguments are the shard's port and "sync" or "async". Each operation is printed as
a JSON line with the wall clock around it, which the spans' times are then held against.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import patched_engine
from tests.kv_connector import kv_connector

CHUNK_TOKENS = 256
LAYERS = 2
HEAD_SIZE = 64
CHUNKS = 5
TAIL_TOKENS = 19
RANK = 1
WORLD_SIZE = 2
LOOKUP_TIMEOUT_SECONDS = 2.0
LOST_COMPLETION = 75  # exit status of a run that met stock LMCache's own fault
CHUNK_BYTES = LAYERS * CHUNK_TOKENS * HEAD_SIZE * 2
TOKENS = CHUNKS * CHUNK_TOKENS + TAIL_TOKENS
FULL_TOKENS = CHUNKS * CHUNK_TOKENS


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def done(name: str, call: Callable[[], Any]) -> Any:
    """Call, and print what came of it and when."""
    start_ns = time.time_ns()
    result, error = None, ""
    try:
        result = call()
    except Exception as raised:
        error = type(raised).__name__
    end_ns = time.time_ns()
    figure = int(result.sum()) if hasattr(result, "sum") else result
    say(did=name, result=figure, error=error, start_ns=start_ns, end_ns=end_ns)
    return result


def main() -> None:
    # Stock LMCache's client never hears of an operation whose answer comes before the submitting
    # thread has noted its number. Here nothing may hold up that thread.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    sys.setswitchinterval(0.05)
    port, is_async = int(sys.argv[1]), sys.argv[2] == "async"
    installed = patched_engine.install()
    import redis
    import torch
    from lmcache.v1.cache_engine import LMCacheEngineBuilder
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.lookup_client.factory import LookupClientFactory
    from lmcache.v1.metadata import LMCacheMetadata

    from lab.engine import keep_sockets_in

    keep_sockets_in(Path.cwd())

    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK_TOKENS,
        local_cpu=True,
        max_local_cpu_size=0.1,
        remote_url=f"resp://127.0.0.1:{port}",
        lookup_timeout_ms=int(LOOKUP_TIMEOUT_SECONDS * 1000),
        lookup_server_worker_ids=[RANK],
        enable_async_loading=is_async,
        extra_config={
            "save_chunk_meta": False,
            "resp_num_threads": 2,
            "save_only_first_rank": False,
            "remote_enable_mla_worker_id_as0": False,
        },
    )

    def metadata(role: str, rank: int) -> Any:
        return LMCacheMetadata(
            model_name="m",
            world_size=WORLD_SIZE,
            local_world_size=WORLD_SIZE,
            worker_id=rank,
            local_worker_id=rank,
            kv_dtype=torch.bfloat16,
            kv_shape=(LAYERS, 1, CHUNK_TOKENS, 1, HEAD_SIZE),
            use_mla=True,
            role=role,
            chunk_size=CHUNK_TOKENS,
            engine_id="engine-under-test",
            kv_connector_extra_config={"lmcache_rpc_port": 0},
        )

    facts = metadata("worker", RANK)
    connector = kv_connector()
    engine = LMCacheEngineBuilder.get_or_create(
        "engine", config, facts, connector, lambda *_: None, lambda *_: None
    )
    client = LookupClientFactory.create_lookup_client(config, metadata("scheduler", 0))
    engine.post_init(async_lookup_server=LookupClientFactory.create_lookup_server(engine, facts))
    first, second, third = (list(range(n * 10_000, n * 10_000 + TOKENS)) for n in range(3))
    kv = torch.randn(LAYERS, TOKENS, HEAD_SIZE).to(torch.bfloat16)
    into = torch.zeros_like(kv)

    def ask(tokens: list[int], lookup_id: str) -> Any:
        """What vLLM's scheduler does: ask, and where that is asynchronous look until it knows."""
        found = client.lookup_cache(lookup_id)
        if found == -1:
            found = client.lookup(tokens, lookup_id=lookup_id)
        while found is None:
            time.sleep(0.01)  # without the client's lock, which its answering thread needs
            found = client.lookup_cache(lookup_id)
        if not found and tokens is not third:
            os._exit(LOST_COMPLETION)
        return found

    mask = torch.ones(TOKENS, dtype=torch.bool)
    mask[: 2 * CHUNK_TOKENS] = False  # as in the second step of a chunked prefill
    done("store", lambda: engine.store(first[: 2 * CHUNK_TOKENS], kvcaches=kv, req_id="r1"))
    done("store", lambda: engine.store(first, mask=mask, kvcaches=kv, req_id="r1"))
    server = redis.Redis(port=port)
    while server.dbsize() < CHUNKS:
        time.sleep(0.02)
    local = engine.storage_manager.storage_backends["LocalCPUBackend"]
    while local.hot_cache:  # what is still being put stays
        engine.storage_manager.clear(["LocalCPUBackend"])
        time.sleep(0.01)
    done("lookup", lambda: ask(first, "r2"))
    done("load", lambda: engine.retrieve(first, kvcaches=into, req_id="r2"))
    done("store", lambda: engine.store(second, kvcaches=kv, req_id="r3"))
    done("lookup", lambda: ask(second, "r3"))
    done("load", lambda: engine.retrieve(second, kvcaches=into, req_id="r3"))
    connector.is_broken = True
    done("store", lambda: engine.store(third, kvcaches=kv, req_id="r4"))
    engine.lookup = engine.async_lookup_and_prefetch = lambda **_: time.sleep(
        600
    )  # answers no more
    done("lookup", lambda: ask(third, "r5"))

    from opentelemetry import trace

    say(
        installed=installed,
        bytes_equal=bool(torch.equal(into[:, :FULL_TOKENS], kv[:, :FULL_TOKENS])),
        imported=sorted(
            name
            for name in ("patched_engine.telemetry.otlp", "opentelemetry.exporter.otlp", "grpc")
            if name in sys.modules
        ),
        pid=os.getpid(),
        threads=sorted({thread.name for thread in threading.enumerate()}),
        global_provider=type(trace.get_tracer_provider()).__name__,
        status=patched_engine.status(),
    )
    sys.stdin.readline()  # until the test has what it waits for


if __name__ == "__main__":
    try:
        main()
    finally:
        os._exit(1)  # LMCache's threads would hold a failed run open
