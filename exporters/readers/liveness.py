"""Tell alive, frozen and dead: the writer's record lock together with its heartbeat."""

from __future__ import annotations

import fcntl
import os
import struct

from exporters.snapshot import FROZEN_AFTER_SECONDS, Liveness

# struct flock of 64-bit Linux: type, whence, start, length, pid. The writer locks byte 0.
_FLOCK = struct.Struct("hhqqi4x")
_ASK = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)


def is_locked(file_descriptor: int) -> bool:
    """Whether another process holds a write lock on byte 0. Asks only, never takes a lock.

    The kernel answers across PID namespaces (the holder's pid then reads 0, its type is still
    set) and drops the lock when the holder dies. Locks of the asking process never show.
    """
    answer = fcntl.fcntl(file_descriptor, fcntl.F_GETLK, _ASK)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def liveness(locked: bool, heartbeat_age_seconds: float) -> Liveness:
    """The state of a page's writer from its lock and the age of its last heartbeat."""
    if not locked:
        return "dead"
    return "alive" if heartbeat_age_seconds <= FROZEN_AFTER_SECONDS else "frozen"
