"""A lock for module state that a forked child does not inherit in another thread's hands.

Engines fork while the heartbeat and the client's threads run. A lock that one of them held at that
moment is held for ever in the child, where the thread is not.
"""

from __future__ import annotations

import os
import threading
import weakref


class ForkSafeLock:
    """A threading.Lock for `with`, free again in each forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_all: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _renew_in_child() -> None:
    for lock in list(_all):
        lock._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_in_child)
