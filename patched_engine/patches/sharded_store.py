"""The sharded store, for engines whose settings ask for it (LMCache #5545, #5548, #5553).

An engine that does not ask takes part in the workers' agreement, and is otherwise left as it is.
"""

from __future__ import annotations

import functools
import itertools
import logging
from typing import TYPE_CHECKING, Any, Final

from patched_engine.patches import placeholders, refusals, resp_backend
from patched_engine.patches.patch import Patch, require
from patched_engine.sharding import agreement, marker, recompute, scheduler, settings
from patched_engine.sharding.settings import SWITCH, ShardingRefused

if TYPE_CHECKING:  # it needs torch, which not every process that lists the patches has
    from patched_engine.sharding.group import Group

logger = logging.getLogger("stallscope")
_made: Final = itertools.count()


def check(module: Any) -> None:
    """The builder must make the engine, and the engine must go through what we override."""
    engine = module.LMCacheEngine
    require(
        module.LMCacheEngineBuilder,
        "get_or_create",
        {"LMCacheEngine", "_instances"},
        ("instance_id", "config", "metadata"),
    )
    require(engine, "store", {"token_database", "batched_from_gpu", "batched_put"})
    require(engine, "lookup", {"token_database", "batched_contains", "lookup_pins"})
    require(engine, "async_lookup_and_prefetch", {"process_tokens"}, ("lookup_id", "hashes"))
    require(engine, "retrieve", {"save_only_first_rank"}, ("tokens", "mask"))
    require(engine, "lookup_unpin", {"cleanup_memory_objs"})
    require(engine, "post_init", {"async_lookup_server"})


def apply(module: Any) -> None:
    """Shard an engine as it is made, and have the scheduler ask every rank."""
    from lmcache.v1.lookup_client.factory import LookupClientFactory

    stock = module.LMCacheEngineBuilder.get_or_create.__func__

    @functools.wraps(stock)
    def made(
        cls: Any, instance_id: str, config: Any, metadata: Any, *rest: Any, **more: Any
    ) -> Any:
        is_new = instance_id not in cls._instances
        group = watch = None
        if is_new:
            group = prepare(config, metadata)
        elif settings.is_wanted(config):
            settings.apply(config, metadata.world_size)  # or upstream finds another configuration
        if group is not None:
            watch = _watch_shard(config, group)
        try:
            engine = stock(cls, instance_id, config, metadata, *rest, **more)
        except BaseException:
            if watch is not None:
                watch.end()
            raise
        if group is not None:
            from patched_engine.sharding.engine import shard

            shard(engine, group, watch)
        return engine

    module.LMCacheEngineBuilder.get_or_create = classmethod(made)
    create = LookupClientFactory.create_lookup_client

    @functools.wraps(create)
    def asking_every_rank(config: Any, metadata: Any, *rest: Any, **more: Any) -> Any:
        if settings.is_wanted(config):
            try:
                settings.check(config, metadata)
                recompute.rate_of(config)
            except ShardingRefused as error:
                refusals.remember(error)  # upstream's manager swallows it
                raise
            settings.apply(config, metadata.world_size)
        client = create(config, metadata, *rest, **more)
        if settings.is_wanted(config):
            scheduler.extend(client, recompute.rate_of(config))
        return client

    LookupClientFactory.create_lookup_client = staticmethod(asking_every_rank)


def prepare(config: Any, metadata: Any) -> Group | None:
    """The group of an engine that is to be sharded; its settings are then changed.

    Raises ShardingRefused where it cannot be, by name.
    """
    is_wanted = settings.is_wanted(config)
    if metadata.role not in (None, "worker"):
        return None
    if is_wanted:
        settings.check(config, metadata)
        recompute.rate_of(config)
    if metadata.world_size > 1:
        _agree(is_wanted, config, metadata)
    if not is_wanted:
        return None
    from patched_engine.sharding.group import find_group

    group = find_group(metadata.world_size)
    if group is None:
        raise ShardingRefused(
            f"{SWITCH}: this worker is in no process group: torch.distributed is not initialised"
        )
    settings.check_parallel(metadata.world_size, group.world_size)
    settings.apply(config, metadata.world_size)
    settings.check_room(config, metadata, settings.max_prompt_tokens(config))
    return group


def _agree(is_wanted: bool, config: Any, metadata: Any) -> None:
    """With all workers of this engine, through the store that torch.distributed was begun with."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return
    agreement.agree(
        dist.distributed_c10d._get_default_store(),
        metadata.worker_id,
        metadata.world_size,
        agreement.statement(is_wanted, config, metadata),
        label=f"{metadata.engine_id}/{dist.get_rank() - metadata.worker_id}/{next(_made)}",
    )


def _watch_shard(config: Any, group: Group) -> marker.Watch | None:
    """Sees to it that this rank's shard is its own. Raises ShardingRefused where it is not."""
    url = str(config.remote_url or "")
    if placeholders.RANK not in url:
        return None  # one shard for all: its keys are the same whoever owns them
    if not url.startswith(resp_backend.SCHEMES):
        logger.warning("stallscope: %s: whose shard this is cannot be told", url.partition(":")[0])
        return None
    from patched_engine.resp.url import endpoint_of

    endpoint = endpoint_of(placeholders.fill(url, group.rank), config.extra_config)
    watch = marker.Watch(endpoint, group.rank, group.world_size)
    watch.begin()
    return watch


PATCH: Final = Patch(
    name="sharded-store",
    upstream="LMCache #5545, #5553",
    summary="each rank stores, looks up and loads its own chunks, where pcp_shard_store is set",
    module="lmcache.v1.cache_engine",
    touches=(
        "LMCacheEngineBuilder.get_or_create",
        "LookupClientFactory.create_lookup_client",
        "a sharded engine's store, lookup, retrieve, async_lookup_and_prefetch,"
        " cleanup_memory_objs and post_init",
    ),
    check=check,
    apply=apply,
)
