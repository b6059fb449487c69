"""What became of each key: a batch has no verdict, since a miss or a fault is a key's own."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class Outcome(enum.IntEnum):
    """How one key ended. Above MISS it is an error, and a GET's buffer holds nothing of use."""

    VALUE = 1  # GET: the buffer is filled; SET: stored; EXISTS: present; DEL: deleted
    MISS = 2  # GET, EXISTS, DEL: no such key
    WRONG_SIZE = 3  # GET: the value is not as long as the buffer
    REFUSED = 4  # the server answered with an error: see `KeyResult.code`
    LOST = 5  # the connection was cut before the whole reply was there
    UNREACHABLE = 6  # no connection: refused, not authenticated, or waiting to try again
    DEADLINE = 7  # the operation's or the batch's deadline passed
    PROTOCOL = 8  # what came is not an answer to this command
    CLOSED = 9  # the client was closed first


@dataclass(frozen=True, slots=True)
class KeyResult:
    """One key's outcome; `detail` says in words what went wrong ("" otherwise)."""

    outcome: Outcome
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.VALUE

    @property
    def is_miss(self) -> bool:
        return self.outcome is Outcome.MISS

    @property
    def is_error(self) -> bool:
        return self.outcome > Outcome.MISS

    @property
    def code(self) -> str:
        """The server's own word for a refusal (OOM, LOADING, NOAUTH, MOVED, ...), else ""."""
        return self.detail.split(" ", 1)[0] if self.outcome is Outcome.REFUSED else ""


VALUE: Final = KeyResult(Outcome.VALUE)
MISS: Final = KeyResult(Outcome.MISS)


def result_of(outcome: int, detail: str = "") -> KeyResult:
    """The KeyResult of an engine's outcome code."""
    if outcome == Outcome.VALUE:
        return VALUE
    return MISS if outcome == Outcome.MISS else KeyResult(Outcome(outcome), detail)
