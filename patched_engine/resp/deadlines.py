"""Three bounds on every call, so that no server, however it fails, can hold an engine thread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

NEVER_NS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds; None disables one. Raises ValueError for anything but a positive number.

    `connect_seconds` bounds one attempt to connect, handshake included. `operation_seconds` bounds
    one key: from the moment its request is sent and the reply before it has ended. When it passes,
    that connection is closed and no other. `total_seconds` bounds a batch from its submission. The
    defaults end before LMCache's blocking_timeout_secs (10 s) and lookup timeout would.
    """

    connect_seconds: float | None = 1.0
    operation_seconds: float | None = 5.0
    total_seconds: float | None = 8.0

    def __post_init__(self) -> None:
        for name in ("connect_seconds", "operation_seconds", "total_seconds"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value!r}: give seconds above 0, or None for no bound")


NO_DEADLINES: Final = Deadlines(None, None, None)


def to_ns(seconds: float | None) -> int:
    """Whole nanoseconds; NEVER_NS for None."""
    return NEVER_NS if seconds is None else min(int(seconds * 1e9), NEVER_NS)
