"""Carries out what the protocol asks for, and aborts the group where a collective fails."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

from patched_engine.sharding.group import Group, LoadAborted
from patched_engine.sharding.protocol import (
    Action,
    Exchange,
    Gather,
    Loaded,
    Place,
    Read,
    Stage,
)


class Rounds(Protocol):
    """How the bytes move, on a host or a device."""

    def stage(self, number: int) -> None: ...

    def gather(self, number: int) -> None: ...

    def place(self, action: Place) -> None: ...

    def finish(self) -> None: ...


def drive(
    protocol: Generator[Action, Any, Loaded],
    group: Group,
    read: Callable[[], int],
    make_rounds: Callable[[], Rounds],
) -> Loaded:
    """One load to its end on this rank.

    `make_rounds` is called after `read`. Raises LoadAborted where a collective failed: the group
    is then aborted, for this rank must not go on and no other may wait for it.
    """
    rounds: Rounds | None = None
    reply: Any = None
    failure: Exception | None = None
    try:
        while True:
            action = protocol.send(reply) if failure is None else protocol.throw(failure)
            reply, failure = None, None
            try:
                if isinstance(action, Read):
                    reply = read()
                elif isinstance(action, Exchange):
                    reply = group.exchange(action.record)
                else:
                    rounds = rounds or make_rounds()
                    _move(rounds, action)
            except BaseException as error:
                if isinstance(action, Exchange | Gather):
                    group.abort()
                    raise LoadAborted(
                        f"rank {group.rank} of {group.world_size}: {type(action).__name__.lower()}"
                        f" failed: {error}"
                    ) from error
                if not isinstance(error, Exception):
                    raise
                failure = error
    except StopIteration as stop:
        loaded: Loaded = stop.value
        return loaded
    finally:
        protocol.close()
        if rounds is not None:
            rounds.finish()


def _move(rounds: Rounds, action: Action) -> None:
    if isinstance(action, Stage):
        rounds.stage(action.round)
    elif isinstance(action, Gather):
        rounds.gather(action.round)
    elif isinstance(action, Place):
        rounds.place(action)
