"""Builds the real LMCache parts of a process: an engine with its lookup server, or the client."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.lookup_client import factory, lmcache_async_lookup_client
from lmcache.v1.lookup_client.factory import LookupClientFactory
from lmcache.v1.memory_allocators.tensor_memory_allocator import TensorMemoryAllocator
from lmcache.v1.metadata import LMCacheMetadata

from lab import incidents
from lab.connector import PagedCPUConnector
from lab.kv import POISON_BYTE
from lab.settings import CHUNK_TOKENS, LAYERS, LOOKUP_TIMEOUT_SECONDS, Settings


def configuration(settings: Settings, shard_url: str) -> Any:
    """LMCache's configuration: healthy, or as the incident has it.

    Healthy: every rank stores and loads its own copy, under its own keys, and answers lookups; on
    the sharded engine, its own chunks.
    (An empty list of lookup workers would mean LMCache's default for MLA, rank 0 alone.)
    """
    incident = incidents.get(settings.incident)
    changed = incident.lmcache_settings(settings) if incident else None
    if settings.engine == "sharded":
        changed = {"extra_config": {"pcp_shard_store": True}}
    elif changed is None:
        changed = {
            "lookup_server_worker_ids": list(range(settings.ranks)),
            "extra_config": {
                "save_only_first_rank": False,
                "remote_enable_mla_worker_id_as0": False,
            },
        }
    values: dict[str, Any] = {
        "chunk_size": CHUNK_TOKENS,
        "local_cpu": True,
        "max_local_cpu_size": _l1_bytes(settings) / (1 << 30),
        "remote_url": shard_url,
        "save_unfull_chunk": False,
        "enable_async_loading": settings.async_loading,
        "lookup_timeout_ms": int(LOOKUP_TIMEOUT_SECONDS * 1e3),
        "lmcache_instance_id": "stallscope-lab",
        **changed,
    }
    values["extra_config"] = {
        "save_chunk_meta": False,
        "resp_num_threads": settings.resp_threads,
        **changed.get("extra_config", {}),
    }
    return LMCacheEngineConfig.from_defaults(**values)


def _l1_bytes(settings: Settings) -> int:
    """A stock rank's own CPU tier; for the sharded engine the pod's, which it divides itself."""
    return settings.l1_bytes * (settings.ranks if settings.engine == "sharded" else 1)


def metadata(settings: Settings, role: str, rank: int, engine_id: str) -> Any:
    """An MLA model's metadata: one latent KV, the same on every rank."""
    return LMCacheMetadata(
        model_name="stallscope/lab-mla",
        world_size=settings.ranks,
        local_world_size=settings.ranks,
        worker_id=rank,
        local_worker_id=rank,
        kv_dtype=torch.bfloat16,
        kv_shape=(LAYERS, 1, CHUNK_TOKENS, 1, settings.head_size),
        use_mla=True,
        role=role,
        chunk_size=CHUNK_TOKENS,
        engine_id=engine_id,
        kv_connector_extra_config={"lmcache_rpc_port": 0},
    )


def build_engine(settings: Settings, rank: int, engine_id: str, shard_url: str) -> tuple[Any, Any]:
    """This rank's engine and its lookup server (None where the settings give it none)."""
    facts = metadata(settings, "worker", rank, engine_id)
    engine = LMCacheEngineBuilder.get_or_create(
        engine_id,
        configuration(settings, shard_url),
        facts,
        PagedCPUConnector(settings.head_size, settings.chunk_copy_seconds),
        _broadcast,
        _broadcast_object,
    )
    server = LookupClientFactory.create_lookup_server(engine, facts)
    engine.post_init(**({"async_lookup_server": server} if settings.async_loading else {}))
    return engine, server


def build_lookup_client(settings: Settings, engine_id: str, shard_url: str) -> Any:
    """The scheduler's side of the lookups."""
    return LookupClientFactory.create_lookup_client(
        configuration(settings, shard_url), metadata(settings, "scheduler", 0, engine_id)
    )


def keep_sockets_in(folder: Path) -> None:
    """Have LMCache make its lookup sockets in the run's folder, each process's working folder.

    Where vLLM is not installed it would make /tmp/vllm_rpc and leave it behind. Its own function
    takes a base folder, which its callers do not pass on.
    """
    for module in (factory, lmcache_async_lookup_client):
        path = module.get_zmq_rpc_path_lmcache
        module.get_zmq_rpc_path_lmcache = functools.partial(path, base_url=str(folder))


def poison_freed_buffers() -> None:
    """Overwrite each L1 buffer as it is freed.

    A load that brings nothing would otherwise find the right bytes of an earlier load in its
    buffer, and a comparison would pass that should not.
    """
    free, batched_free = TensorMemoryAllocator.free, TensorMemoryAllocator.batched_free

    @functools.wraps(free)
    def poisoned_free(self: Any, memory_obj: Any, *args: Any, **kwargs: Any) -> None:
        _poison(memory_obj)
        free(self, memory_obj, *args, **kwargs)

    @functools.wraps(batched_free)
    def poisoned_batched_free(self: Any, memory_objs: Any, *args: Any, **kwargs: Any) -> None:
        for memory_obj in memory_objs or ():
            _poison(memory_obj)
        batched_free(self, memory_objs, *args, **kwargs)

    TensorMemoryAllocator.free = poisoned_free
    TensorMemoryAllocator.batched_free = poisoned_batched_free


def _poison(memory_obj: Any) -> None:
    if memory_obj.is_valid():
        memory_obj.raw_data.view(torch.uint8).fill_(POISON_BYTE)


def _broadcast(tensor: torch.Tensor, source: int) -> torch.Tensor:
    dist.broadcast(tensor, source)
    return tensor


def _broadcast_object(value: Any, source: int) -> Any:
    values = [value]
    dist.broadcast_object_list(values, source)
    return values[0]
