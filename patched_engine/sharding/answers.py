"""The way back to the scheduler in async mode, which knows what "nothing found" means for a rank.

LMCache's storage layer answers 0 when a rank finds none of its chunks. With a sharded layout that
throws away a prefix that others hold: the rank is not in the way before its first chunk (LMCache
#5553; post, "One edge case had to change"). After an exception it does not answer at all.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Final

from patched_engine import recorder

_MOST: Final = 4096  # lookups under way at once; beyond it the oldest is taken for answered


@dataclass(slots=True)
class _Lookup:
    nothing_tokens: int
    is_aborted: bool = False


class Answers:
    """Stands for LMCache's LMCacheAsyncLookupServer towards its storage manager."""

    def __init__(self, server: Any, free: Callable[[str], None]) -> None:
        """`free` gives back what a lookup that has ended brought."""
        self._server = server
        self._free = free
        self._under_way: OrderedDict[str, _Lookup] = OrderedDict()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def expect(self, lookup_id: str, nothing_tokens: int) -> None:
        """A lookup begins; `nothing_tokens` is its answer where none of its chunks is found."""
        with self._lock:
            self._under_way[lookup_id] = _Lookup(nothing_tokens)
            if len(self._under_way) > _MOST:
                self._under_way.popitem(last=False)

    def abort(self, lookup_id: str) -> bool:
        """Nobody waits for this lookup any more. False: it has ended, free what it brought."""
        with self._lock:
            lookup = self._under_way.get(lookup_id)
            if lookup is not None:
                lookup.is_aborted = True
            return lookup is not None

    def is_aborted(self, lookup_id: str) -> bool:
        """Whether a lookup under way was aborted."""
        with self._lock:
            lookup = self._under_way.get(lookup_id)
            return lookup is not None and lookup.is_aborted

    def send_response_to_scheduler(self, lookup_id: str, num_hit_tokens: int) -> None:
        """Pass on an answer, 0 as what it means; the lookup is over."""
        with self._lock:
            lookup = self._under_way.pop(lookup_id, None)
        nothing = lookup.nothing_tokens if lookup is not None else 0
        self._server.send_response_to_scheduler(lookup_id, max(num_hit_tokens, nothing))
        if lookup is not None and lookup.is_aborted:
            self._free(lookup_id)

    def ended(self, lookup_id: str, task: Future[Any]) -> None:
        """After a lookup's coroutine: if it raised, the scheduler must not wait in vain."""
        error = CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self.answer_failed(lookup_id, error)

    def answer_failed(self, lookup_id: str, error: BaseException) -> None:
        """A lookup came to nothing: answer it if nobody has."""
        recorder.fault("sharded prefetch", error)
        with self._lock:
            is_open = lookup_id in self._under_way
        if is_open:
            self.send_response_to_scheduler(lookup_id, 0)
