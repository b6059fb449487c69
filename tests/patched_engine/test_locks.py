"""A lock that another thread holds at a fork is free in the child."""

from __future__ import annotations

import os
import threading

from patched_engine import truncation_guard
from patched_engine.locks import ForkSafeLock

GIVEN_SECONDS = 2.0


def child_takes(lock: ForkSafeLock) -> bool:
    """Whether a forked child gets the lock while a thread of the parent holds it."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        watchdog = threading.Timer(GIVEN_SECONDS, os._exit, (1,))
        watchdog.daemon = True
        watchdog.start()
        with lock:
            os._exit(0)
    release.set()
    thread.join()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_child_gets_it():
    assert child_takes(ForkSafeLock())


def test_the_guard_of_the_page_has_such_a_lock():
    """The heartbeat takes it: a fork right after the page was opened used to meet that."""
    assert child_takes(truncation_guard._lock)
