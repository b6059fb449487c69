"""W ranks of the shipped protocol in one thread: collectives meet here, or the proof fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from patched_engine.sharding.ownership import first_owned, owner
from patched_engine.sharding.protocol import (
    DEPTH,
    Action,
    Exchange,
    Gather,
    Loaded,
    Place,
    Plan,
    Prepare,
    Read,
    Stage,
    load,
)

Fault = tuple[int, int]  # a rank, and the number of its action that fails


class Injected(Exception):
    """The fault of a test."""


@dataclass
class Rank:
    """One rank's generator with what a device would hold."""

    plan: Plan
    readable: Sequence[bool]  # of every chunk of the prompt
    faults: frozenset[int]
    slots: dict[int, int | None] = field(default_factory=dict)  # round -> staged chunk
    buffers: dict[int, list[int | None]] = field(default_factory=dict)
    pages: dict[int, int | None] = field(default_factory=dict)
    limit: int = 1 << 30  # the first chunk that its own faults make impossible
    actions: int = 0
    is_prepared: bool = False
    waiting: Exchange | Gather | None = None
    ended: Loaded | None = None
    raised: Exception | None = None

    def __post_init__(self) -> None:
        self._run = load(self.plan)
        self._go(None, None)

    def answer(self, reply: object) -> None:
        self._go(reply, None)

    def abort(self, error: Exception) -> None:
        self._go(None, error)

    def _go(self, reply: object, error: Exception | None) -> None:
        """On to the next collective, or to the end."""
        self.waiting = None
        try:
            action = self._run.throw(error) if error is not None else self._run.send(reply)
            while True:
                self.actions += 1
                fails = self.actions in self.faults
                if isinstance(action, Exchange | Gather):
                    if fails:
                        action = self._run.throw(Injected(f"{action}"))
                        continue
                    assert self.is_prepared or isinstance(action, Exchange)
                    self.waiting = action
                    return
                if fails:
                    self.limit = min(self.limit, self._lost_by(action))
                    action = self._run.throw(Injected(f"{action}"))
                else:
                    action = self._run.send(self._do(action))
        except StopIteration as stop:
            self.ended = stop.value
        except Injected as injected:
            self.raised = injected

    def _do(self, action: Action) -> object:
        plan = self.plan
        if isinstance(action, Prepare):
            self.is_prepared = True
            return None
        if isinstance(action, Read):
            count = 0
            chunk = first_owned(plan.rank, plan.world_size, plan.first_chunk)
            while chunk < plan.end_chunk and self.readable[chunk]:
                count += 1
                chunk += plan.world_size
            return count
        if isinstance(action, Stage):
            assert self.is_prepared
            assert len(self.slots) - len(self.buffers) <= DEPTH
            chunk = action.round * plan.world_size + plan.rank
            self.slots[action.round] = chunk
            return None
        assert isinstance(action, Place)
        for chunk in range(action.first_chunk, action.end_chunk):
            assert plan.first_chunk <= chunk < plan.end_chunk
            self.pages[chunk] = self.buffers[action.round][chunk % plan.world_size]
        return None

    def _lost_by(self, action: Action) -> int:
        plan = self.plan
        if isinstance(action, Prepare):
            return plan.first_chunk
        if isinstance(action, Read):
            return first_owned(plan.rank, plan.world_size, plan.first_chunk)
        if isinstance(action, Stage):
            own = action.round * plan.world_size + plan.rank
            return max(plan.first_chunk, own)
        assert isinstance(action, Place)
        return action.first_chunk


def run(
    world_size: int,
    first_chunk: int,
    readable: Sequence[bool],
    faults: Sequence[Fault] = (),
    fingerprints: Sequence[int] | None = None,
) -> list[Rank]:
    """All ranks to their end. Raises AssertionError where one waits for what another never enters.

    After a failed collective on one rank the group is aborted for all, as its caller must.
    """
    ranks = [
        Rank(
            Plan(
                rank,
                world_size,
                7,
                first_chunk,
                len(readable),
                fingerprints[rank] if fingerprints else 1,
            ),
            readable,
            frozenset(number for of, number in faults if of == rank),
        )
        for rank in range(world_size)
    ]
    while any(rank.waiting is not None for rank in ranks):
        if any(rank.raised is not None for rank in ranks):
            for rank in ranks:
                if rank.waiting is not None:
                    rank.abort(Injected("aborted"))
            continue
        kinds = {(type(rank.waiting), getattr(rank.waiting, "round", None)) for rank in ranks}
        assert len(kinds) == 1, [(rank.waiting, rank.ended) for rank in ranks]
        waiting = [rank.waiting for rank in ranks]
        if isinstance(waiting[0], Exchange):
            replies = [action.record for action in waiting]
            for rank in ranks:
                rank.answer(replies)
        else:
            number = waiting[0].round
            gathered = [rank.slots.get(number) for rank in ranks]
            for rank in ranks:
                rank.buffers[number] = gathered
                rank.answer(None)
    return ranks


def check(ranks: list[Rank], first_chunk: int, readable: Sequence[bool]) -> int:
    """All agree on the longest prefix that can be loaded, and hold it; returns its end."""
    world_size = len(ranks)
    expected = next(
        (c for c in range(first_chunk, len(readable)) if not readable[c]), len(readable)
    )
    # A rank's staging fault beyond what others can reach costs nothing.
    limits = [rank.limit for rank in ranks]
    expected = max(first_chunk, min([expected, *limits]))
    for rank in ranks:
        assert rank.raised is None and rank.ended is not None
        assert rank.ended.end_chunk == expected, (rank.ended, expected, limits)
        for chunk in range(first_chunk, expected):
            assert rank.pages[chunk] == chunk, (chunk, rank.pages)
            assert owner(chunk, world_size) == chunk % world_size
    return expected
