"""LMCache's engine with the sharded store: each rank stores, looks up and loads its own chunks.

An engine becomes one after it was made (`shard`): the same object with these methods over its own.
What they do not do themselves is upstream's code, shown this rank's chunks alone (LMCache #5545,
#5553; post, Bottleneck 1).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

import torch
from lmcache.v1.cache_engine import LMCacheEngine

from patched_engine import recorder
from patched_engine.hooks.wrap import unhooked
from patched_engine.sharding.answers import Answers
from patched_engine.sharding.driver import drive
from patched_engine.sharding.group import Group
from patched_engine.sharding.guarded import GuardedManager, count_wasted
from patched_engine.sharding.marker import Watch
from patched_engine.sharding.ownership import Chunk, answers, owned
from patched_engine.sharding.protocol import Loaded, Plan, load
from patched_engine.sharding.reading import Held
from patched_engine.sharding.record import fingerprint
from patched_engine.sharding.rounds import (
    DeviceRounds,
    HostRounds,
    Pages,
    Staging,
    Streams,
    make_staging,
)
from patched_engine.sharding.views import OwnTokens, OwnView, chunks_of, name_as_rank0

logger = logging.getLogger("stallscope")
_L2 = "RemoteBackend"


class Shard:
    """What a sharded engine knows beside what LMCache's does."""

    def __init__(self, engine: Any, group: Group, watch: Watch | None) -> None:
        self.group = group
        self.watch = watch
        self.rank, self.world_size = group.rank, group.world_size
        self.own = OwnView(engine, OwnTokens(engine.token_database, self.rank, self.world_size))
        self.sequence = 0
        self.answers: Answers | None = None
        self._staging: Staging | None = None
        self._streams: Streams | None = None

    def staging(self, metadata: Any, device: torch.device) -> Staging:
        """The buffers of all loads, made with the first."""
        if self._staging is None or self._staging.device != device:
            self._staging = make_staging(self.group, metadata, device)
        self._staging.reserve()
        return self._staging

    def streams(self, device: torch.device) -> Streams:
        """A GPU's streams of all loads, made with the first."""
        if self._streams is None:
            self._streams = Streams(device)
        return self._streams


class ShardedEngine(LMCacheEngine):
    """Made by `shard`, never constructed."""

    stallscope_shard: Shard

    def post_init(self, **kwargs: Any) -> None:
        """As upstream's; the way back to the scheduler knows what "nothing found" means."""
        server = kwargs.get("async_lookup_server")
        if server is not None:
            self.stallscope_shard.answers = Answers(server, self._free_prefetched)
            kwargs["async_lookup_server"] = self.stallscope_shard.answers
        super().post_init(**kwargs)
        manager, watch = self.storage_manager, self.stallscope_shard.watch
        if watch is not None and manager is not None:
            watch.tell(lambda may_use: manager.set_backend_bypass(_L2, not may_use))

    def close(self) -> None:
        """As upstream's."""
        if self.stallscope_shard.watch is not None:
            self.stallscope_shard.watch.end()
        super().close()

    def store(self, *args: Any, **kwargs: Any) -> None:
        """Store this rank's chunks. What fails is found by nobody later, and breaks no step."""
        view = self.stallscope_shard.own.for_store()
        try:
            unhooked(LMCacheEngine.store)(view, *args, **kwargs)
        except Exception as error:
            recorder.fault("sharded store", error)
            view.storage_manager.give_back()

    def lookup(
        self,
        tokens: Any = None,
        hashes: Any = None,
        offsets: Any = None,
        search_range: Any = None,
        lookup_id: str | None = None,
        pin: bool = False,
        request_configs: Any = None,
    ) -> int:
        """How many tokens of the prompt this rank is not in the way of.

        That is the start of the first of its chunks that is absent, the end of the prompt if none
        is: the smallest answer of all ranks is what is there.
        """
        shard = self.stallscope_shard
        asked = {
            "tokens": tokens,
            "hashes": hashes,
            "offsets": offsets,
            "request_configs": request_configs,
        }
        # Where the chunks lie; upstream makes the keys of those that it looks for.
        chunks = chunks_of(self.token_database, make_key=False, **asked)
        mine = owned(chunks, shard.rank, shard.world_size)
        end = 0
        if mine:
            try:
                end = unhooked(LMCacheEngine.lookup)(
                    shard.own, search_range=search_range, lookup_id=lookup_id, pin=pin, **asked
                )
            except Exception as error:
                recorder.fault("sharded lookup", error)
        present = sum(chunk.end <= end for chunk in mine)
        return answers(chunks, shard.rank, shard.world_size)[present]

    def async_lookup_and_prefetch(
        self,
        lookup_id: str,
        tokens: Any = None,
        hashes: Any = None,
        offsets: Any = None,
        search_range: Any = None,
        pin: bool = False,
        request_configs: Any = None,
    ) -> None:
        """Look for this rank's chunks and load what is there, in the background; then answer."""
        shard, manager = self.stallscope_shard, self.storage_manager
        chunks = chunks_of(
            self.token_database,
            tokens=tokens,
            hashes=hashes,
            offsets=offsets,
            request_configs=request_configs,
        )
        mine = owned(chunks, shard.rank, shard.world_size)
        reached = answers(chunks, shard.rank, shard.world_size)
        assert shard.answers is not None
        shard.answers.expect(lookup_id, reached[0])
        if not mine or not self.is_healthy():
            shard.answers.send_response_to_scheduler(lookup_id, 0)
            return
        task = asyncio.run_coroutine_threadsafe(
            type(manager).async_lookup_and_prefetch(
                GuardedManager(manager, shard.answers),
                lookup_id,
                [chunk.key for chunk in mine],
                reached,
                search_range if search_range is not None else self.retrieve_locations,
                pin,
            ),
            manager.loop,
        )
        task.add_done_callback(functools.partial(shard.answers.ended, lookup_id))

    def cleanup_memory_objs(self, lookup_id: str) -> None:
        """An aborted lookup: free what it brought; if it is under way, it starts no further GET
        and frees what it has when it ends."""
        answering = self.stallscope_shard.answers
        if answering is None or not answering.abort(lookup_id):
            self._free_prefetched(lookup_id)

    def _free_prefetched(self, lookup_id: str) -> None:
        """Free what an ended prefetch brought and nobody took, and count what of it was loaded."""
        held = Held()
        try:
            held.take_prefetched(self, lookup_id)
            count_wasted(held.unpinned_bytes)
        except Exception as error:
            recorder.fault("sharded cleanup", error)
        finally:
            held.release()

    @torch.inference_mode()
    def retrieve(self, tokens: Any, mask: Any = None, **kwargs: Any) -> torch.Tensor:
        """Load what all ranks agree on. Every rank enters the same collectives, whatever fails.

        `tokens` and `mask` as upstream's: the mask is False for a prefix of whole chunks. Returns a
        bool mask on the CPU, True where KV was loaded: the same on every rank. Raises LoadAborted
        where a collective failed.
        """
        shard = self.stallscope_shard
        request_id = str(kwargs.get("req_id", ""))
        stats = self.stats_monitor.on_retrieve_request(_asked(tokens, mask))
        plan, chunks, problem = self._plan(tokens, mask, kwargs)
        mine = owned(chunks, shard.rank, shard.world_size)
        held = Held()
        try:

            def read() -> int:
                if problem is not None:
                    raise problem
                return held.read(self, mine, request_id) if self.is_healthy() else 0

            loaded = drive(
                load(plan), shard.group, read, lambda: self._rounds(chunks, held, kwargs)
            )
        finally:
            held.release()
        found = torch.zeros(len(tokens), dtype=torch.bool)
        for chunk in chunks:
            if chunk.index < loaded.end_chunk:
                found[chunk.start : chunk.end] = True
        self.stats_monitor.on_retrieve_finished(stats, torch.sum(found))
        self._tell(request_id, loaded, chunks)
        return found

    def _plan(
        self, tokens: Any, mask: Any, call: dict[str, Any]
    ) -> tuple[Plan, list[Chunk], Exception | None]:
        """What to load. A rank that cannot tell says so in the exchange, as no other could."""
        shard = self.stallscope_shard
        shard.sequence += 1
        chunks: list[Chunk] = []
        keys = 0
        problem: Exception | None = None
        try:
            chunks = chunks_of(
                self.token_database,
                tokens=tokens,
                mask=mask,
                request_configs=call.get("request_configs"),
            )
            keys = fingerprint(chunk.key.to_string() for chunk in chunks)
        except Exception as error:
            problem = error
        plan = Plan(
            rank=shard.rank,
            world_size=shard.world_size,
            sequence=shard.sequence,
            first_chunk=chunks[0].index if chunks else 0,
            end_chunk=chunks[-1].index + 1 if chunks else 0,
            fingerprint=keys,
        )
        return plan, chunks, problem

    def _rounds(self, chunks: list[Chunk], held: Held, call: dict[str, Any]) -> Any:
        shard = self.stallscope_shard
        device = device_of(call.get("kvcaches"))
        staging = shard.staging(self.metadata, device)
        tokens = {chunk.index: (chunk.start, chunk.end) for chunk in chunks}
        pages = Pages(self.gpu_connector, self.metadata, self.fmt, tokens, call)
        if device.type == "cpu":
            return HostRounds(shard.group, staging, pages, held.objects)
        return DeviceRounds(shard.group, staging, pages, held.objects, shard.streams(device))

    def _tell(self, request_id: str, loaded: Loaded, chunks: list[Chunk]) -> None:
        came = sum(chunk.index < loaded.end_chunk for chunk in chunks)
        why = loaded.mismatch or (repr(loaded.error) if loaded.error is not None else "")
        if came < len(chunks) or why:
            logger.warning(
                "stallscope: request %s: %d of %d chunks loaded%s",
                request_id,
                came,
                len(chunks),
                f": {why}" if why else "",
            )


def shard(engine: Any, group: Group, watch: Watch | None = None) -> None:
    """Make an engine that was just built a sharded one. Its settings have been changed before.

    `watch` says whether this rank may use its shard.
    """
    name_as_rank0(engine.token_database, engine.metadata)
    engine.stallscope_shard = Shard(engine, group, watch)
    engine.__class__ = ShardedEngine


def _asked(tokens: Any, mask: Any) -> int:
    try:
        return int(mask.sum()) if mask is not None else len(tokens)
    except Exception:  # the plan finds it too, and says so where the other ranks hear it
        return 0


def device_of(kvcaches: Any) -> torch.device:
    """Where the paged KV lies: a tensor, or a list or dictionary of one a layer."""
    while isinstance(kvcaches, (list, tuple, dict)):
        kvcaches = next(iter(kvcaches.values() if isinstance(kvcaches, dict) else kvcaches))
    device: torch.device = kvcaches.device
    return device
