"""What one call of LMCache's engine moved: by tier, by request, against the rank's share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from exporters import page_layout as layout


class Work:
    """One engine call under way in this thread."""

    __slots__ = (
        "asked_tokens",
        "end_ns",
        "expected_chunks",
        "has_range",
        "is_counted",
        "l1",
        "l2",
        "lookup_number",
        "start_ns",
        "tokens",
    )

    def __init__(self, start_ns: int) -> None:
        self.start_ns = self.end_ns = start_ns
        self.asked_tokens = 0
        self.tokens = 0  # stored, loaded or found
        self.expected_chunks = 0
        self.l1 = [0, 0]  # chunks, bytes
        self.l2 = [0, 0]
        self.is_counted = False  # what moved was counted as it came, in the background
        self.has_range = False
        self.lookup_number = 0

    @property
    def chunks(self) -> int:
        """Chunks that moved, of both tiers."""
        return self.l1[0] + self.l2[0]

    @property
    def size_bytes(self) -> int:
        """Bytes that moved, of both tiers."""
        return self.l1[1] + self.l2[1]

    def tier(self) -> int:
        """The tier code of what moved."""
        if self.l1[0] and self.l2[0]:
            return layout.TIER_INDEX["mixed"]
        if self.l2[0]:
            return layout.TIER_INDEX["l2"]
        return layout.TIER_INDEX["l1"] if self.l1[0] else layout.TIER_INDEX[""]


class Prefetched:
    """What was prefetched for each request, until its load is reported. Bounded: a request that
    was aborted never collects its own."""

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._by_request: OrderedDict[str, Work] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, request_id: str, tier: str, chunks: int, size_bytes: int) -> None:
        """Add what one backend brought ("l1" or "l2")."""
        with self._lock:
            work = self._by_request.setdefault(request_id, Work(0))
            into = work.l1 if tier == "l1" else work.l2
            into[0] += chunks
            into[1] += size_bytes
            if len(self._by_request) > self._most:
                self._by_request.popitem(last=False)

    def take(self, request_id: str) -> Work:
        """What came for this request; nothing, if nothing did."""
        with self._lock:
            return self._by_request.pop(request_id, None) or Work(0)

    def look(self, request_id: str) -> Work:
        """The same, left for the load that will take it."""
        with self._lock:
            return self._by_request.get(request_id) or Work(0)


prefetched = Prefetched()


def owned_chunks(first: int, last: int, rank: int, world_size: int) -> int:
    """How many chunks c of [first, last) have c mod W = rank: the rank's expected share."""
    if last <= first or world_size <= 0:
        return 0
    return (last - 1 - rank) // world_size - (first - 1 - rank) // world_size


def whole_chunks(tokens: int, chunk_tokens: int) -> int:
    """How many chunks hold so many tokens; the last may be short."""
    return -(-tokens // chunk_tokens)


def moved(objects: Sequence[Any]) -> tuple[int, int]:
    """Chunks and bytes of a list of memory objects; None entries moved nothing."""
    chunks = size_bytes = 0
    for item in objects:
        if item is not None:
            chunks += 1
            size_bytes += item.get_size()
    return chunks, size_bytes
