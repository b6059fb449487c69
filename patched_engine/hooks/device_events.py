"""Times collectives on a GPU: an event pair around each, polled later, never synchronised.

The pair is recorded on the caller's current stream, which waits for the collective's own stream:
the time between them is d of the design's definition, wait and transfer together.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.page import Ring

# At 2,000 collectives a second and one poll a second this holds twice what can be under way.
PAIRS = 4096
_RING_DROPS = layout.COUNTER_INDEX["ring_drops"]
_NANOSECONDS_PER_MILLISECOND = 1_000_000


class DeviceEvents:
    """A bounded pool of event pairs and the collectives that still wait for theirs."""

    def __init__(self, event_type: Any, pairs: int = PAIRS) -> None:
        self._event_type = event_type
        self._left = pairs
        self._free: deque[tuple[Any, Any]] = deque()
        self._under_way: deque[tuple[Any, Any, Ring, int, int]] = deque()

    def start(self) -> tuple[Any, Any] | None:
        """Record the first event on the current stream; None when all pairs are under way."""
        try:
            pair = self._free.popleft()
        except IndexError:
            if self._left <= 0:
                page = recorder.current()
                if page is not None:
                    page.add(_RING_DROPS)
                return None
            self._left -= 1
            pair = (self._event_type(enable_timing=True), self._event_type(enable_timing=True))
        pair[0].record()
        return pair

    def finish(self, pair: tuple[Any, Any], ring: Ring, offset: int, sequence: int) -> None:
        """Record the second event; the duration is written once the device has passed it."""
        pair[1].record()
        self._under_way.append((*pair, ring, offset, sequence))

    def poll(self) -> None:
        """Write the durations of all pairs that the device has passed; runs on the heartbeat."""
        while self._under_way:
            begin, end, ring, offset, sequence = self._under_way[0]
            if not end.query():
                return
            self._under_way.popleft()
            milliseconds = begin.elapsed_time(end)
            ring.end_with_duration(
                offset, sequence, max(1, int(milliseconds * _NANOSECONDS_PER_MILLISECOND))
            )
            self._free.append((begin, end))
