"""What a process group is to the page: its ring, its own sequence, its ranks.

The sequence is counted from the hook's installation, page or no page, so that the ranks of a group
agree on it however their pages came up. One sequence a group (design, Definitions).
"""

from __future__ import annotations

import itertools
from typing import Any

from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.locks import ForkSafeLock
from patched_engine.page import Page, Ring

_RING_DROPS = layout.COUNTER_INDEX["ring_drops"]
_COLLECTIVES = layout.COUNTER_INDEX["collectives"]


class GroupTracker:
    """Counts one group's collectives and writes them to a ring of the current page."""

    __slots__ = ("_page", "_ring", "_sequence", "name", "ranks")

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        self.name = name
        self.ranks = ranks
        self._sequence = itertools.count(1)
        self._page: Page | None = None
        self._ring: Ring | None = None

    def begin(self, op: int, basis: int, size_bytes: int) -> tuple[Ring, int, int] | None:
        """Arrive: returns (ring, record offset, sequence) for the departure, or None unrecorded."""
        sequence = next(self._sequence)
        page = recorder.current()
        if page is None:
            return None
        if page is not self._page:
            self._open(page)
        page.add(_COLLECTIVES)
        ring = self._ring
        if ring is None:
            page.add(_RING_DROPS)
            return None
        return ring, ring.begin(op, basis, sequence, size_bytes), sequence

    def _open(self, page: Page) -> None:
        """Take a ring of a page met for the first time, and list the group in its header."""
        self._page = page
        taken = page.new_ring()
        self._ring = None
        if taken is None:
            return
        index, self._ring = taken
        with _lock:
            listed = page.info().get("groups")
            groups = [*listed] if isinstance(listed, list) else []
            groups.append({"ring": index, "name": self.name, "ranks": list(self.ranks)})
            page.set_info({"groups": groups})


_trackers: dict[Any, GroupTracker | None] = {}
_lock = ForkSafeLock()


def tracker_of(group: Any) -> GroupTracker | None:
    """The tracker of a torch ProcessGroup (None: the default group); None for one of one rank."""
    try:
        return _trackers[group]
    except KeyError:
        return _register(group)


def _register(group: Any) -> GroupTracker | None:
    import torch.distributed as dist

    actual = dist.group.WORLD if group is None else group
    if actual is None or actual == dist.GroupMember.NON_GROUP_MEMBER:
        return None  # not initialised, or not a member: the call itself will say so
    ranks = tuple(dist.get_process_group_ranks(actual))
    tracker = _trackers.get(actual)
    if tracker is None and len(ranks) > 1:
        tracker = GroupTracker(str(actual.group_name), ranks)
    _trackers[actual] = tracker
    _trackers[group] = tracker
    return tracker


def forget_groups(group: Any = None) -> None:
    """Drop the tracker of a destroyed group; None, or the default group itself, ends them all.

    Only members destroy a subgroup: were the others dropped with it, their sequences would begin
    anew on some ranks of the default group and not on the rest.
    """
    default = _trackers.get(None)
    if group is None or (default is not None and _trackers.get(group) is default):
        _trackers.clear()
    else:
        _trackers.pop(group, None)
