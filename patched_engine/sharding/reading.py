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
        self._is_pinned_by_us = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the chunks that were read."""
        return sum(item.get_size() for item in self.objects.values())

    def read(self, engine: Any, chunks: Sequence[Chunk], lookup_id: str) -> int:
        """Read these chunks; how many of them, from the first on, are there."""
        if not chunks:
            if engine.async_loading:
                self._take_prefetched(engine, lookup_id)
            return 0
        if engine.async_loading:
            return self._read_prefetched(engine, chunks, lookup_id)
        return self._read_now(engine, chunks, lookup_id)

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
                    _keep_in_l1(engine, blocks[:good], came[:good])
                break
        return count

    def _read_prefetched(self, engine: Any, chunks: Sequence[Chunk], lookup_id: str) -> int:
        came = self._take_prefetched(engine, lookup_id)
        count = 0
        for chunk in chunks:
            memory_obj = came.pop(chunk.key, None)
            if memory_obj is None:
                break
            self.objects[chunk.index] = memory_obj
            self._others.remove(memory_obj)
            count += 1
        # Upstream never writes prefetched L2 hits back to L1.
        _keep_in_l1(engine, chunks[:count], [self.objects[c.index] for c in chunks[:count]])
        return count

    def _take_prefetched(self, engine: Any, lookup_id: str) -> dict[Any, Any]:
        """What the prefetch brought; taken out, so that nothing frees it a second time."""
        from lmcache.v1.event_manager import EventStatus, EventType

        events = engine.event_manager
        if events.get_event_status(EventType.LOADING, lookup_id) is EventStatus.NOT_FOUND:
            return {}  # it found nothing
        event = events.pop_event(EventType.LOADING, lookup_id)
        came = {key: item for tier in event.result() for key, item in tier}
        self._is_pinned_by_us = True
        self._others = list(came.values())
        return came

    def release(self) -> None:
        """Give back what was read, used or not; never raises."""
        for memory_obj in [*self.objects.values(), *self._others]:
            try:
                if self._is_pinned_by_us and memory_obj.is_pinned:
                    memory_obj.unpin()
                memory_obj.ref_count_down()
            except Exception as error:
                logger.error("stallscope: a chunk could not be given back: %r", error)
        self.objects, self._others = {}, []


def _keep_in_l1(engine: Any, chunks: Sequence[Chunk], objects: Sequence[Any]) -> None:
    """Have L1 hold these too; those that it has already it leaves as they are."""
    l1 = engine.storage_manager.storage_backends.get(_L1)
    if l1 is not None and chunks:
        l1.batched_submit_put_task([chunk.key for chunk in chunks], list(objects))
