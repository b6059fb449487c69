"""How full this rank's part of the L1 is, once a second and outside of any step.

LMCache's allocator tells its statistics with each allocation; they are read, not counted again.
"""

from __future__ import annotations

from typing import Any, Final

from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.page import Page

_USED: Final = layout.GAUGE_INDEX["l1_used_bytes"]
_CAPACITY: Final = layout.GAUGE_INDEX["l1_capacity_bytes"]
_READ: Final = layout.MARK_INDEX["l1_read"]
_watched: set[int] = set()  # incarnations of pages that have a poller


def watch(engine: Any) -> None:
    """Show the L1 of this LMCache engine from now on. A later engine replaces the earlier one."""
    page = recorder.current()
    if page is None:
        return
    page.gauge(_CAPACITY, int(engine.config.max_local_cpu_size * (1 << 30)))
    if page.incarnation in _watched:
        return
    _watched.add(page.incarnation)
    from lmcache.observability import LMCStatsMonitor  # its module is loaded: an engine is there

    statistics = LMCStatsMonitor.GetOrCreate()
    page.add_poller(lambda: _read(page, statistics))


def _read(page: Page, statistics: Any) -> None:
    page.gauge(_USED, int(statistics.local_cache_usage_bytes))
    page.mark(_READ)
