"""One rank of a pod: a real LMCache engine that does what a test says, line by line."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.patched_engine.patches.engine import CHUNK_TOKENS, HEAD_SIZE, LAYERS, Answers

ENGINE_ID = "pod"


def tokens_of(seed: int, length: int) -> list[int]:
    """A prompt; longer ones of the same seed begin as shorter ones do."""
    drawn = random.Random(seed)
    return [drawn.randrange(50_000) for _ in range(length)]


def kv_of(seed: int, length: int) -> Any:
    """Its KV: bfloat16 [layers, length, head size], whatever bits; its beginning as the tokens'."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(
        -(1 << 15), 1 << 15, (length, LAYERS, HEAD_SIZE), dtype=torch.int16, generator=generator
    )
    return words.transpose(0, 1).contiguous().view(torch.bfloat16)


def same(one: Any, other: Any) -> bool:
    import torch

    return bool(torch.equal(one.view(torch.int16), other.view(torch.int16)))


def connector() -> Any:
    from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface

    class Connector(GPUConnectorInterface):
        def batched_from_gpu(self, memory_objs, starts, ends, **kwargs):
            for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
                memory_obj.tensor[0].copy_(kwargs["kvcaches"][:, start:end])

        def batched_to_gpu(self, memory_objs=None, starts=None, ends=None, **kwargs):
            for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
                kwargs["kvcaches"][:, start:end] = memory_obj.tensor[0]

        from_gpu = to_gpu = get_shape = None  # abstract, and not on these paths

    return Connector()


def configuration(spec: dict[str, Any]) -> Any:
    from lmcache.v1.config import LMCacheEngineConfig

    return LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK_TOKENS,
        local_cpu=True,
        max_local_cpu_size=spec["pod_bytes"] / (1 << 30),
        remote_url=spec["url"],
        enable_async_loading=spec["is_async"],
        blocking_timeout_secs=spec["blocking_seconds"],
        lookup_timeout_ms=int(spec["lookup_seconds"] * 1000),
        save_unfull_chunk=False,
        extra_config={"save_chunk_meta": False, "resp_num_threads": 2, **spec["extra"]},
        **spec["settings"],
    )


def metadata(spec: dict[str, Any], number: int) -> Any:
    import torch
    from lmcache.v1.metadata import LMCacheMetadata

    return LMCacheMetadata(
        model_name="organisation/a-model",
        world_size=spec["world_size"],
        local_world_size=spec["world_size"],
        worker_id=number,
        local_worker_id=number,
        kv_dtype=torch.bfloat16,
        kv_shape=(LAYERS, 1, CHUNK_TOKENS, 1, HEAD_SIZE),
        use_mla=True,
        role="worker",
        chunk_size=CHUNK_TOKENS,
        engine_id=ENGINE_ID,
        kv_connector_extra_config={"lmcache_rpc_port": 0},
    )


class Rank:
    """An engine and what can be asked of it; each method's result goes to the test as JSON."""

    def __init__(self, spec: dict[str, Any], number: int) -> None:
        from lmcache.v1.cache_engine import LMCacheEngineBuilder

        self.spec, self.number = spec, number
        self.world_size = spec["world_size"]
        self.is_async = spec["is_async"]
        self.answers = Answers()
        self.puts: list[str] = []
        if spec["join"]:
            import torch.distributed as dist

            dist.init_process_group(
                "gloo",
                init_method=f"file://{spec['folder']}/group",
                rank=number,
                world_size=self.world_size,
                timeout=timedelta(seconds=spec["collective_seconds"]),
            )
        self.engine = LMCacheEngineBuilder.get_or_create(
            ENGINE_ID,
            configuration(spec),
            metadata(spec, number),
            connector(),
            lambda tensor, source: tensor,
            lambda value, source: value,
        )
        self.engine.post_init(**({"async_lookup_server": self.answers} if self.is_async else {}))

    @property
    def l1(self) -> Any:
        return self.engine.storage_manager.storage_backends["LocalCPUBackend"]

    @property
    def l2(self) -> Any:
        return self.engine.storage_manager.storage_backends["RemoteBackend"]

    def keys(self, seed: int, length: int) -> list[str]:
        """Every chunk's key, whoever owns it, as the server knows it."""
        found = self.engine.token_database.process_tokens(tokens_of(seed, length))
        return [key.to_string() for _, _, key in found]

    def store(self, seed: int, length: int, skip: int = 0) -> dict[str, Any]:
        import torch

        mask = torch.ones(length, dtype=torch.bool)
        mask[:skip] = False
        self.engine.store(
            tokens_of(seed, length), mask=mask, kvcaches=kv_of(seed, length), req_id=f"store {seed}"
        )
        return {}

    def settle(self, seconds: float = 5.0) -> bool:
        """Wait until nothing is being PUT."""
        deadline = time.monotonic() + seconds
        while self.l2.put_tasks and time.monotonic() < deadline:
            time.sleep(0.005)
        return not self.l2.put_tasks

    def ask(self, name: str, seed: int, length: int) -> int | None:
        """Look up as the lookup server does: by hashes. None where the answer comes later."""
        hashes, offsets = [], []
        for start, end, value in self.engine.token_database.process_tokens(
            tokens_of(seed, length), make_key=False
        ):
            hashes.append(value)
            offsets.append(end - start)
        if self.is_async:
            self.answers.tokens.pop(name, None)
            self.engine.async_lookup_and_prefetch(name, hashes=hashes, offsets=offsets, pin=True)
            return None
        return int(self.engine.lookup(hashes=hashes, offsets=offsets, lookup_id=name, pin=True))

    def answer(self, name: str, seconds: float = 10.0) -> int | None:
        """What an asynchronous lookup found; None where no answer came."""
        return self.answers.wait(name, seconds)

    def load(self, name: str, seed: int, length: int, skip: int = 0) -> dict[str, Any]:
        import torch

        kv = kv_of(seed, length)
        into = torch.zeros_like(kv)
        mask = torch.ones(length, dtype=torch.bool)
        mask[:skip] = False
        begun = time.monotonic()
        try:
            found = self.engine.retrieve(tokens_of(seed, length), mask, kvcaches=into, req_id=name)
        except Exception as error:
            return {
                "error": type(error).__name__,
                "why": str(error),
                "seconds": time.monotonic() - begun,
            }
        end = skip + int(found.sum())
        return {
            "loaded": int(found.sum()),
            "in_a_row": bool(found[skip:end].all()),
            "equal": same(into[:, skip:end], kv[:, skip:end]),
            "seconds": time.monotonic() - begun,
        }

    def unpin(self, name: str) -> dict[str, Any]:
        self.engine.lookup_unpin(name)
        return {}

    def cancel(self, name: str) -> dict[str, Any]:
        """What the lookup server does with the scheduler's word that a lookup is given up."""
        self.engine.cleanup_memory_objs(name)
        return {}

    def empty_l1(self) -> int:
        """Drop all of L1; bytes that something still holds."""
        self.engine.storage_manager.clear(["LocalCPUBackend"])
        return int(self.l1.memory_allocator.pin_allocator.total_allocated_size)

    def state(self) -> dict[str, Any]:
        """What is held: it must not grow."""
        import patched_engine
        from patched_engine import recorder

        held = list(self.l1.hot_cache.values())
        events = self.engine.event_manager.events
        return {
            "l1": sorted(key.to_string() for key in self.l1.hot_cache),
            "refs": sum(item.get_ref_count() for item in held) - len(held),
            "pins": sum(item.meta.pin_count for item in held),
            "stray_bytes": self.l1.memory_allocator.pin_allocator.total_allocated_size
            - sum(item.get_physical_size() for item in held),
            "events": sum(len(ids) for by in events.values() for ids in by.values()),
            "bypassed": self.engine.storage_manager.get_bypassed_backends(),
            "l1_bytes": self.engine.config.max_local_cpu_size * (1 << 30),
            "kind": type(self.engine).__name__,
            "faults": patched_engine.status()["faults"],
            "page": recorder.current() is not None,
        }

    def l1_is_right(self, seed: int, length: int) -> bool:
        """Whether what L1 holds of this prompt has the prompt's bytes."""
        kv = kv_of(seed, length)
        for start, end, key in self.engine.token_database.process_tokens(tokens_of(seed, length)):
            held = self.l1.hot_cache.get(key)
            if held is not None and not same(held.tensor[0], kv[:, start:end]):
                return False
        return True

    def inject(self, where: str, value: float = 0.0, once: bool = True) -> dict[str, Any]:
        """Have this rank's next load fail (or be late) at a place."""
        from tests.patched_engine.sharding import injections

        injections.put(self, where, value, once)
        return {}

    def heal(self) -> dict[str, Any]:
        from tests.patched_engine.sharding import injections

        injections.take_out()
        return {}

    def hold(self, count: int) -> int:
        """Take chunks of L1 and keep them, as other work would; how many were had."""
        facts = self.engine.metadata
        self._kept = []
        while len(self._kept) < count:
            item = self.l1.allocate(
                facts.get_shapes(), facts.get_dtypes(), eviction=False, busy_loop=False
            )
            if item is None:
                break
            self._kept.append(item)
        return len(self._kept)

    def let_go(self) -> dict[str, Any]:
        for item in self._kept:
            item.ref_count_down()
        self._kept = []
        return {}


def serve(spec: dict[str, Any], number: int) -> None:
    """Do what comes over the socket until it closes."""
    os.environ.update(spec["environment"])
    os.chdir(spec["folder"])
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(str(Path(spec["folder"]) / "control"))
        stream = channel.makefile("rw")
        stream.write(json.dumps({"rank": number}) + "\n")
        stream.flush()
        try:
            rank = Rank(spec, number)
            said: Any = {"ok": True}
        except Exception as error:
            rank, said = None, {"error": type(error).__name__, "why": str(error)}
        while True:
            stream.write(json.dumps(said) + "\n")
            stream.flush()
            line = stream.readline()
            if not line:
                return
            name, arguments = json.loads(line)
            said = getattr(rank, name)(*arguments)
