"""What the client asks of the threads that move the bytes, compiled or pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, Protocol

from patched_engine.resp.deadlines import Deadlines
from patched_engine.resp.results import KeyResult

LOW_BYTES: Final = 4096  # requests smaller than this are gathered before they are sent
PIPELINE_KEYS: Final = 64  # requests in flight on one connection
WINDOW_BYTES: Final = 32 << 20  # of values in flight on one connection: two chunks of the post's
DRAIN_BYTES: Final = 64 << 20  # a wrong-size value up to this is read past, a longer one cut off


class Kind(enum.IntEnum):
    """The four commands."""

    GET = 0
    SET = 1
    EXISTS = 2
    DEL = 3


@dataclass(slots=True)
class Batch:
    """One call: `views` (GET and SET only) are bytes, one a key. Kept alive until it is done."""

    kind: Kind
    keys: list[bytes]
    views: list[memoryview]
    deadlines: Deadlines
    connections: int
    kept: list[object] = field(default_factory=list)

    @property
    def tile_keys(self) -> int:
        """Keys one connection takes at a time: an even share, or less, for others to take over."""
        share = -(-len(self.keys) // self.connections)
        return max(1, min(share, PIPELINE_KEYS))


class Engine(Protocol):
    """Threads, one a connection. A ticket names a batch until its results are taken.

    A lane is a queue of completions whose descriptor becomes readable with each. A batch submitted
    with lane -1 is awaited with `wait` instead.
    """

    name: str

    def submit(self, batch: Batch, lane: int) -> int:
        """The batch's ticket. Raises EngineClosed. Never blocks."""

    def wait(self, ticket: int) -> None:
        """Returns when the batch is done: no thread touches its buffers any more."""

    def open_lane(self) -> tuple[int, int]:
        """A new lane and its descriptor. Raises RuntimeError when there are too many."""

    def drain(self, lane: int) -> list[int]:
        """The tickets completed since the last call."""

    def take(self, ticket: int) -> list[KeyResult]:
        """The results of a done batch, which is then forgotten."""

    def close(self) -> None:
        """Ends every operation, then the threads and the connections."""

    def free(self) -> None:
        """After `close`, once no thread is in `wait` and every lane was drained."""

    def abandon(self) -> None:
        """In a forked child, where the threads are not: lets go of the descriptors."""


class EngineClosed(RuntimeError):
    """Nothing is taken on any more."""
