"""The load, as one rank goes through it: no I/O, so that the proof drives what ships.

One exchange says how far each rank can go. Then all ranks enter the same rounds: round k is an
all-gather of chunks kW .. kW+W-1, one from each rank, in place and in order. A closing exchange
says whether any rank failed on the way. A failure of a rank's own work shortens the prefix for
all; a failed collective ends the load for this rank with an exception: it never skips one.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

from patched_engine.sharding.ownership import first_owned
from patched_engine.sharding.record import FAILED, OK, Record, agree

DEPTH: Final = 4
"""Rounds staged at once: the device memory that a load takes beside the paged KV."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Have the buffers of DEPTH rounds: without them this rank can take part in none."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read this rank's own chunks; answer how many of them, from the first on, are there."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective: send these RECORD_BYTES, answer with every rank's, in rank order."""

    record: bytes


@dataclass(frozen=True, slots=True)
class Stage:
    """Begin the copy of this rank's chunk of a round to the device; it may own none of it."""

    round: int


@dataclass(frozen=True, slots=True)
class Gather:
    """A collective: every rank's slot of a round to every rank."""

    round: int


@dataclass(frozen=True, slots=True)
class Place:
    """Move chunks [first, end) of a gathered round into the paged KV."""

    round: int
    first_chunk: int
    end_chunk: int


Action = Prepare | Read | Exchange | Stage | Gather | Place


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for: chunks [first_chunk, end_chunk) of a prompt, the same on every rank."""

    rank: int
    world_size: int
    sequence: int
    first_chunk: int
    end_chunk: int
    fingerprint: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """How it ended: chunks [first_chunk, end_chunk) are loaded on every rank.

    `error` is this rank's own failure, `mismatch` what the ranks did not agree about.
    """

    end_chunk: int
    error: Exception | None = None
    mismatch: str = ""


def load(plan: Plan) -> Generator[Action, Any, Loaded]:
    """One rank's side of a load. An exception of its own work is thrown in where it happened.

    An exception of Exchange or Gather passes through: the caller must abort the group.
    """
    error: Exception | None = None
    reach = plan.first_chunk
    try:
        yield Prepare()
        reach = first_owned(plan.rank, plan.world_size, plan.first_chunk)
        reach += (yield Read()) * plan.world_size
    except Exception as failure:
        error = failure
    reach = min(plan.end_chunk, reach)
    record = _record(plan, 0, reach, error)
    verdict = agree((yield Exchange(record.pack())), record)
    end = verdict.end_chunk
    if end <= plan.first_chunk:
        return Loaded(plan.first_chunk, error, verdict.mismatch)
    reach = end
    rounds = range(plan.first_chunk // plan.world_size, (end - 1) // plan.world_size + 1)
    for number in rounds[:DEPTH]:
        try:
            yield Stage(number)
        except Exception as failure:
            error, reach = failure, min(reach, _own(plan, number))
    yield Gather(rounds[0])
    for number in rounds:
        if number + 1 in rounds:
            yield Gather(number + 1)  # under way while this round is placed
        first = max(plan.first_chunk, number * plan.world_size)
        try:
            yield Place(number, first, min(end, (number + 1) * plan.world_size))
        except Exception as failure:
            error, reach = failure, min(reach, first)
        if number + DEPTH in rounds:  # its buffer is free now
            try:
                yield Stage(number + DEPTH)
            except Exception as failure:
                error, reach = failure, min(reach, _own(plan, number + DEPTH))
    record = _record(plan, 1, reach, error)
    verdict = agree((yield Exchange(record.pack())), record)
    return Loaded(verdict.end_chunk, error, verdict.mismatch)


def _own(plan: Plan, number: int) -> int:
    """This rank's chunk of a round, or the first of the load where it has none in it."""
    return max(plan.first_chunk, number * plan.world_size + plan.rank)


def _record(plan: Plan, phase: int, reach: int, error: Exception | None) -> Record:
    return Record(
        sequence=plan.sequence,
        phase=phase,
        first_chunk=plan.first_chunk,
        end_chunk=plan.end_chunk,
        fingerprint=plan.fingerprint,
        reach=reach,
        status=OK if error is None else FAILED,
    )
