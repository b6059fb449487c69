"""Gets a rank's own chunks out of its tiers, for either way of loading, and gives them back.

Each object is held once for each reference that is ours, and given back once: upstream unpins what
a later `lookup_unpin` unpins again (0.5.5), and leaves a prefetched event where that frees its
objects a second time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from patched_engine.sharding.ownership import Chunk

_L1: Final = "LocalCPUBackend"

logger = logging.getLogger("stallscope")


class Held:
    """The memory objects of one load, by chunk; `release` gives every one back."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        self._others: list[Any] = []
        self._pinned: list[Any] = []

    @property
    def size_bytes(self) -> int:
        """Bytes of the chunks that were read."""
        return sum(item.get_size() for item in self.objects.values())

    def read(self, engine: Any, chunks: Sequence[Chunk], lookup_id: str) -> int:
        """Read these chunks; how many of them, from the first on, are there."""
        if engine.async_loading:
            return self._read_prefetched(engine, chunks, lookup_id)
        return self._read_now(engine, chunks, lookup_id) if chunks else 0

    def _read_now(self, engine: Any, chunks: Sequence[Chunk], lookup_id: str) -> int:
        manager = engine.storage_manager
        pins = engine.lookup_pins.get(lookup_id) or {}
        if len(pins) == 1:
            mapping = {next(iter(pins)): list(chunks)}
        else:
            found = manager.get_block_mapping([(c.key, c.start, c.end) for c in chunks])
            by_start = {chunk.start: chunk for chunk in chunks}
            mapping = {
                location: [by_start[start] for _, start, _ in blocks]
                for location, blocks in found.items()
            }
        count = 0
        for location, blocks in mapping.items():
            came = manager.batched_get(keys=[chunk.key for chunk in blocks], location=location)
            good = came.index(None) if None in came else len(came)
            for chunk, memory_obj in zip(blocks[:good], came, strict=False):
                self.objects[chunk.index] = memory_obj
            self._others += [item for item in came[good:] if item is not None]
            count += good
            if good < len(blocks):
                if location != _L1:  # upstream keeps a whole batch in L1, or nothing of it
                    _keep_in_l1(engine, [chunk.key for chunk in blocks[:good]], came[:good])
                break
        return count

    def _read_prefetched(self, engine: Any, chunks: Sequence[Chunk], lookup_id: str) -> int:
        came = self.take_prefetched(engine, lookup_id)
        # Upstream never writes prefetched L2 hits back to L1.
        _keep_in_l1(engine, list(came), list(came.values()))
        count = 0
        for chunk in chunks:
            memory_obj = came.pop(chunk.key, None)
            if memory_obj is None:
                break
            self.objects[chunk.index] = memory_obj
            count += 1
        self._others = list(came.values())
        return count

    def take_prefetched(self, engine: Any, lookup_id: str) -> dict[Any, Any]:
        """What a prefetch that has ended brought, by key: from here on it is ours to give back.

        Taken out of LMCache's events, so that nothing frees it a second time.
        """
        from lmcache.v1.event_manager import EventStatus, EventType

        events = engine.event_manager
        if events.get_event_status(EventType.LOADING, lookup_id) is not EventStatus.DONE:
            return {}  # it found nothing
        event = events.pop_event(EventType.LOADING, lookup_id)
        came = {key: item for tier in event.result() for key, item in tier}
        self._others = list(came.values())
        # Its lookup has pinned what was in L1. What came from elsewhere nobody else knows yet.
        self._pinned = [item for item in self._others if item.is_pinned]
        return came

    @property
    def unpinned_bytes(self) -> int:
        """Bytes of a prefetch that came from another tier than L1."""
        pinned = {id(item) for item in self._pinned}
        return sum(item.get_size() for item in self._others if id(item) not in pinned)

    def release(self) -> None:
        """Give back what was read, used or not; never raises."""
        for give_back, objects in (
            ("unpin", self._pinned),
            ("ref_count_down", [*self.objects.values(), *self._others]),
        ):
            for memory_obj in objects:
                try:
                    getattr(memory_obj, give_back)()
                except Exception as error:
                    logger.error("stallscope: a chunk could not be given back: %r", error)
        self.objects, self._others, self._pinned = {}, [], []


def _keep_in_l1(engine: Any, keys: Sequence[Any], objects: Sequence[Any]) -> None:
    """Have L1 hold these too; those that it has already it leaves as they are."""
    l1 = engine.storage_manager.storage_backends.get(_L1)
    if l1 is not None and keys:
        l1.batched_submit_put_task(list(keys), list(objects))
