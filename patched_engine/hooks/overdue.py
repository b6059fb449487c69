"""Lists the keys of GETs that are late in the page's header, from the heartbeat.

The pending table has room for the begin of one key, and in a batch any key may be the one that the
shard no longer has. Whoever asks the shard needs them whole; a healthy GET is over before the
heartbeat looks at it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from patched_engine.page import Page

OVERDUE_SECONDS = 0.5
# The header holds 16 KB of facts in all. A batch's later keys are given up before its first.
MOST_BYTES = 6144


class OverdueKeys:
    """The GETs under way by slot of the pending table; holding one is a dictionary store."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[float, str, Sequence[str]]] = {}

    def hold(self, slot: int, kind: str, keys: Sequence[str]) -> None:
        """A call of `kind` for these keys begins."""
        if slot >= 0:
            self._held[slot] = (time.monotonic(), kind, keys)

    def release(self, slot: int) -> None:
        """It has ended."""
        self._held.pop(slot, None)

    def facts(self) -> list[dict[str, object]]:
        """What is late now, oldest first, as far as there is room."""
        now = time.monotonic()
        late = sorted(
            (item for item in list(self._held.values()) if now - item[0] >= OVERDUE_SECONDS),
            key=lambda item: item[0],
        )
        room = MOST_BYTES
        listed: list[dict[str, object]] = []
        for _, kind, keys in late:
            fitting = []
            for key in keys:
                room -= len(key) + 3
                if room < 0:
                    break
                fitting.append(key)
            if fitting:
                listed.append({"kind": kind, "key_count": len(keys), "keys": fitting})
        return listed

    def poll(self, page: Page) -> None:
        """Write what is late, if that has changed."""
        found = self.facts()
        if found != page.info().get("overdue", []):
            page.set_info({"overdue": found})


overdue = OverdueKeys()
