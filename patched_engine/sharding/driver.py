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
    Prepare,
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

    `make_rounds` has the buffers of DEPTH rounds. Raises LoadAborted where a collective failed.
    Whatever this rank leaves with but a result, it aborts the group: no other may wait for it.
    """
    rounds: Rounds | None = None
    reply: Any = None
    failure: Exception | None = None
    try:
        while True:
            action = protocol.send(reply) if failure is None else protocol.throw(failure)
            reply, failure = None, None
            try:
                if isinstance(action, Prepare):
                    rounds = make_rounds()
                elif isinstance(action, Read):
                    reply = read()
                elif isinstance(action, Exchange):
                    reply = group.exchange(action.record)
                else:
                    assert rounds is not None  # a rank without them agrees to no round
                    _move(rounds, action)
            except Exception as error:
                if isinstance(action, Exchange | Gather):
                    raise LoadAborted(
                        f"rank {group.rank} of {group.world_size}: {type(action).__name__.lower()}"
                        f" failed: {error}"
                    ) from error
                failure = error
    except StopIteration as stop:
        loaded: Loaded = stop.value
        return loaded
    except BaseException:
        group.abort()
        raise
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
