"""Smaller fixes tried, each on an engine of its own: `python -m ...smaller PORT FIX...`."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import sys
import threading
import types
from typing import Any

from tests.patched_engine.patches import engine as e

JOBS = 8
GIVEN_SECONDS = 1.0


def executor(port: int) -> dict[str, Any]:
    """More jobs than workers outlive their waiters, fail, or are cancelled; then one more comes."""
    from lmcache.v1.storage_backend.job_executor.pq_executor import AsyncPQExecutor

    async def slow() -> int:
        await asyncio.sleep(0.1)
        return 1

    async def failing() -> None:
        raise OSError("the server went away")

    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def good() -> int:
        return 42

    async def trial(jobs: AsyncPQExecutor) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for name, job, seconds in (
            ("slow", slow, 0.02),
            ("failing", failing, 1.0),
            ("cancelled", cancelled, 1.0),
        ):
            for _ in range(JOBS):
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await asyncio.wait_for(jobs.submit_job(job), seconds)
            await asyncio.sleep(JOBS * 0.1 / jobs.max_workers + 0.1)
            try:
                seen[name] = await asyncio.wait_for(jobs.submit_job(good), GIVEN_SECONDS)
            except TimeoutError:
                seen[name] = None
                break  # the workers are gone: each further job would be waited for in vain
        return seen

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    jobs = AsyncPQExecutor(loop)
    result = asyncio.run_coroutine_threadsafe(trial(jobs), loop).result()
    jobs.shutdown(wait=False)
    return {"after": result}


def prefetch_keys(port: int) -> dict[str, Any]:
    """Rank 1 prefetches, in MLA mode, what rank 0 stored."""
    import redis
    import torch

    engine, answers = e.build(f"resp://127.0.0.1:{port}", rank=1, world_size=2, is_async=True)
    tokens = list(range(e.LENGTH))
    kv = torch.randn(e.LAYERS, e.LENGTH, e.HEAD_SIZE).to(torch.bfloat16)
    server = redis.Redis(port=port)
    for index, key in enumerate(e.keys_of(engine, tokens)):
        chunk = kv[:, index * e.CHUNK_TOKENS : (index + 1) * e.CHUNK_TOKENS].contiguous()
        server.set(key.with_new_worker_id(0).to_string(), chunk.view(torch.uint8).numpy().tobytes())
    engine.async_lookup_and_prefetch(lookup_id="a", tokens=tokens, pin=True)
    answered = answers.wait("a", e.LOOKUP_SECONDS)
    if answered is None:
        return {"answered": None}
    return {"answered": answered, **e.retrieve(engine, tokens, kv, "a")}


def rank_url(port: int) -> dict[str, Any]:
    """Where an engine of rank 3 connects for a scheme of ours and for another one."""
    from lmcache.v1.storage_backend.remote_backend import RemoteBackend

    seen: dict[str, Any] = {}
    engine, _ = e.build(f"resp://127.0.0.1:{port}", rank=2, world_size=4)
    made: list[str] = []

    class Recorded(RemoteBackend):
        def init_connection(self) -> None:
            made.append(str(self.config.remote_url))

    config = copy.copy(engine.config)
    config.remote_url = "lm://cache-{rank}:65432"
    Recorded(config, engine.metadata, engine.storage_manager.loop, None, "cpu")
    seen["other"] = made[0]
    if not hasattr(e.l2(engine), "_url"):
        return seen  # upstream's would try for a long time to connect to such a host
    engine, _ = e.build(f"resp://127.0.1.{{rank}}:{port}", rank=3, world_size=4)
    seen["resp"] = e.l2(engine)._url
    seen["config"] = engine.config.remote_url
    refused = (("unknown", "resp://127.0.0.1:1/{tenant}", 4), ("brace", "resp://a{rank:1", 5))
    for name, url, rank in refused:
        try:
            e.build(url, rank=rank, world_size=8)
            seen[name] = None
        except ValueError as error:
            seen[name] = str(error)
    return seen


def refusals(port: int) -> dict[str, Any]:
    """What LMCache's manager makes of a start with a placeholder that nobody can fill."""
    # Its HTTP server needs packages that no engine needs, and is not under test.
    for name in ("internal_api_server.api_server", "offload_server.zmq_server"):
        module = types.ModuleType(f"lmcache.v1.{name}")
        vars(module)["InternalAPIServer"] = vars(module)["ZMQOffloadServer"] = object
        sys.modules.setdefault(module.__name__, module)
    from lmcache.v1.manager import LMCacheManager

    class Factory:
        def get_or_create_metadata(self) -> None:
            return None

        def get_or_create_lmcache_engine(self) -> Any:
            return e.build("resp://127.0.0.1:1/{tenant}", rank=6, world_size=8)[0]

    engine, _ = e.build(f"resp://127.0.0.1:{port}", rank=7, world_size=8)
    try:
        manager = LMCacheManager(engine.config, Factory(), "worker")
    except ValueError as error:
        return {"raised": str(error)}
    return {"raised": None, "degraded": manager._init_failed}


FIXES = {
    "executor": executor,
    "prefetch-keys": prefetch_keys,
    "rank-url": rank_url,
    "refusals": refusals,
}


def main(arguments: list[str]) -> dict[str, Any]:
    port, *names = arguments
    return {name: FIXES[name](int(port)) for name in names}


if __name__ == "__main__":
    e.run(main, stuck_seconds=e.BUSY_SECONDS)
